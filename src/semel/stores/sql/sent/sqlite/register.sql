-- Written by `python -m tools.queries` from queries/register.sql: change that file.
-- register: record a route's recipe, or let it take the place of the one named as previous.
-- takes: route recipe previous alive
-- gives: recipe, previous, alive_until, now; no row when another recipe, or this one, is on record
-- why: the comparison is made under the row's lock: of two nodes that change it at once, one wins.
--      While keys of what was replaced last may live, it is not forgotten for another change; it
--      may come back, for the two are all there is.
INSERT INTO semel_recipe (route, recipe) VALUES (:route, :recipe)
ON CONFLICT (route) DO UPDATE
SET recipe = excluded.recipe, previous = semel_recipe.recipe, alive_until = :now + :alive
WHERE semel_recipe.recipe = :previous AND semel_recipe.recipe <> excluded.recipe
    AND (semel_recipe.alive_until IS NULL OR semel_recipe.alive_until <= :now
         OR semel_recipe.previous = excluded.recipe)
RETURNING recipe, previous, alive_until, :now

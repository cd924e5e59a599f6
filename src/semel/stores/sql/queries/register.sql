-- register: record a route's recipe, or let it take the place of the one named as previous.
-- takes: route recipe previous
-- gives: recipe, previous, changed_at, now; no row when another recipe, or this one, is on record
-- why: the comparison is made under the row's lock: of two nodes that change it at once, one wins.
INSERT INTO semel_recipe (route, recipe) VALUES (:route, :recipe)
ON CONFLICT (route) DO UPDATE
SET recipe = excluded.recipe, previous = semel_recipe.recipe, changed_at = {now}
WHERE semel_recipe.recipe = :previous AND semel_recipe.recipe <> excluded.recipe
RETURNING recipe, previous, changed_at, {now}

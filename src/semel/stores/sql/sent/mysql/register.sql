-- Written by `python -m tools.queries` from queries/mysql/register.sql: change that file.
-- register: record a route's recipe, or let it take the place of the one named as previous.
-- takes: route recipe previous alive
-- gives: recipe, previous, alive_until, now as they are on record; no row when a rival came first
-- why: the comparison is made under the row's lock: of two nodes that change it at once, one wins.
--      While keys of what was replaced last may live, it is not forgotten for another change; it
--      may come back, for the two are all there is.
--      Assignments are made from left to right: the old recipe is kept before it is replaced.
UPDATE semel_recipe
SET previous = recipe, alive_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + :alive, recipe = :recipe
WHERE route = :route AND recipe = :previous AND recipe <> :recipe
    AND (alive_until IS NULL
         OR alive_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    OR previous = :recipe);

SELECT MAX(1) INTO @semel_found FROM semel_recipe WHERE route = :route;

INSERT INTO semel_recipe (route, recipe)
SELECT :route, :recipe FROM DUAL WHERE @semel_found IS NULL;

SELECT recipe, previous, alive_until, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_recipe WHERE route = :route

-- Written by `python -m tools.queries` from queries/read_recipe.sql: change that file.
-- read_recipe: the recipe on record for a route.
-- takes: route
-- gives: recipe, previous, alive_until, now; no row when there is none
-- why: follows a register that changed nothing, to tell "the same" from "another".
SELECT recipe, previous, alive_until, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_recipe WHERE route = :route

-- Written by `python -m tools.queries` from queries/read_recipe.sql: change that file.
-- read_recipe: the recipe on record for a route.
-- takes: $1 route
-- gives: recipe, previous, alive_until, now; no row when there is none
-- why: follows a register that changed nothing, to tell "the same" from "another".
SELECT recipe, previous, alive_until, (extract(epoch from clock_timestamp()) * 1000000)::bigint
FROM semel_recipe WHERE route = $1

#!lua
-- register: record a route's recipe, or let it take the place of the one named as previous.
-- alone: its keys are the recipe, and where it would be in other layouts
-- takes: recipe alive previous?
-- gives: recipe, previous, alive_until, now; with the recipe nil, another layout is in use
-- why: while keys of what was replaced last may live, it is not forgotten for another change; it may
--      come back, for the two are all there is. A
--      recipe stays for good, so it tells of every layout that ever had records of this route.
local recipe, previous = ARGV[1], ARGV[3]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
for other = 2, #KEYS do
  if redis.call('EXISTS', KEYS[other]) == 1 then return {false, false, false, now} end
end
local row = redis.call('HMGET', KEYS[1], 'recipe', 'previous', 'alive_until')
if not row[1] then
  redis.call('HSET', KEYS[1], 'recipe', recipe)
  return {recipe, false, false, now}
end
local over = not row[3] or tonumber(row[3]) <= now or row[2] == recipe
if row[1] == previous and row[1] ~= recipe and over then
  local alive_until = string.format('%.0f', now + tonumber(ARGV[2]))
  redis.call('HSET', KEYS[1], 'recipe', recipe, 'previous', previous, 'alive_until', alive_until)
  return {recipe, previous, alive_until, now}
end
return {row[1], row[2], row[3], now}

#!lua flags=allow-oom
-- inquire: somebody is about to ask the provider, or gives up asking.
-- event: inquire
-- takes: identity seen tries again_in
-- gives: as every write
-- why: the number of tries is compared, so that of two reconcilers one asks.
local found = look()
local asked = found and found.state == 'unknown' and found.fence == ARGV[2]
if asked and found.tries == tonumber(ARGV[3]) then
  change(found, {tries = found.tries + 1}, 'ask', later(ARGV[4]))
  return applied()
end
return lost()

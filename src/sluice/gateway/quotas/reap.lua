-- A process that has died gives its slots back. Money that it held stays in doubt until the ledger
-- says what it had spent.
-- ARGV[1]: the process; gives 1, or 0 where another did it.
local process = ARGV[1]
local touched = 'sluice:q:p:' .. process
if redis.call('ZREM', 'sluice:q:beats', process) == 0 then return 0 end
for _, key in ipairs(redis.call('SMEMBERS', touched)) do
    if string.sub(key, 1, 11) == 'sluice:q:b:' then
        redis.call('SADD', 'sluice:q:doubt', key .. '|' .. process)
    else
        local held = tonumber(redis.call('HGET', key, 's:' .. process) or 0)
        if held ~= 0 then redis.call('HINCRBY', key, 'S', -held) end  -- there is no "-0"
        redis.call('HDEL', key, 's:' .. process)
    end
end
redis.call('DEL', touched)
return 1

-- What the ledger knows of a budget: raises what each process is known to have spent, and lets go
-- of what processes that are gone had held. Repeating it changes nothing.
-- ARGV: budget key, when it is of no more use (ms), number of processes that are gone, those
-- processes, then process and nano-USD in turn.
local key, gone = ARGV[1], tonumber(ARGV[3])
local spent = tonumber(redis.call('HGET', key, 'spent') or 0)
local held = tonumber(redis.call('HGET', key, 'held') or 0)
for i = 4 + gone, #ARGV, 2 do
    local field, ledger = 'm:' .. ARGV[i], tonumber(ARGV[i + 1])
    local known = tonumber(redis.call('HGET', key, field) or 0)
    if ledger > known then
        spent = spent + ledger - known
        redis.call('HSET', key, field, ledger)
    end
end
for i = 4, 3 + gone do
    local field = 'h:' .. ARGV[i]
    held = held - tonumber(redis.call('HGET', key, field) or 0)
    redis.call('HDEL', key, field)
    redis.call('SREM', 'sluice:q:doubt', key .. '|' .. ARGV[i])
end
redis.call('HSET', key, 'spent', spent, 'held', held, 'seeded', 1)
redis.call('PEXPIREAT', key, ARGV[2])
return 1

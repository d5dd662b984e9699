-- One exchange between a gateway process and the counters: positions are told, requests admitted.
--
-- ARGV[1]: MessagePack of {process, scopes, requests}
--   scope:   {key, requests/min, tokens/min, concurrency (each -1: no limit), slots held,
--             {sub-window, requests, tokens, ...} to add (below zero: to give back),
--             {requests, tokens, slots} wished ahead, budgets}
--   budget:  {key, limit (-1: none), alert (-1: none), spent by this process since it began,
--             held by it now, wished ahead, start, end (ms)}
--   request: {tokens, nano-USD, slots, scope number, ...}; one without a slot is limited by the
--            number of requests alone
-- Gives MessagePack of {ms, results, scopes}
--   result:  0, or {scope number, dimension, wait in ms}; the dimension is 1 requests, 2 tokens,
--            3 concurrency, 10 + n the scope's n-th budget, 20 + n one that can't be judged: not
--            seeded, or of another time
--   scope:   {requests, tokens, slots in use by all, ahead requests, ahead tokens, ahead slots,
--             sub-window, budgets}
--   budget:  {spent, held by all, ahead, alert crossed just now}
--
-- A rate is counted in sub-windows of 250 ms. A minute takes 242 of them: the one that is not over,
-- and one more for requests that were let in ahead and use it up to 250 ms later.
local WIDTH, COUNT, DAY = 250, 242, 86400
-- A promise that nobody came for is void after this many sub-windows.
local GRACE = 8

local time = redis.call('TIME')
local ms = time[1] * 1000 + time[2] / 1000
local index = math.floor(ms / WIDTH)
local message = cmsgpack.unpack(ARGV[1])
local process, scopes, requests = message[1], message[2], message[3]

local function number(value) return tonumber(value or 0) or 0 end

-- Tokens that are promised: whoever comes again may by then be estimated to need some more.
local function padded(tokens, limit) return math.min(math.ceil(tokens * 1.125), limit) end

-- Sub-windows that have gone by leave the sums, and promises that are void with them.
local function advance(scope)
    local last = math.min(index - COUNT, scope.high + GRACE + 1)
    for from = scope.low, last, 100 do
        local windows, void = {}, {}
        for i = from, math.min(from + 99, last) do
            windows[#windows + 1] = 'r' .. i
            windows[#windows + 1] = 't' .. i
            void[#void + 1] = 'q' .. (i + COUNT - GRACE - 1)
            void[#void + 1] = 'u' .. (i + COUNT - GRACE - 1)
        end
        local values = redis.call('HMGET', scope.key, unpack(windows))
        for i = 1, #values, 2 do
            scope.requests = scope.requests - number(values[i])
            scope.tokens = scope.tokens - number(values[i + 1])
        end
        redis.call('HDEL', scope.key, unpack(windows))
        redis.call('HDEL', scope.key, unpack(void))
    end
    if scope.low <= index - COUNT then
        scope.low = index - COUNT + 1
        redis.call('EXPIRE', scope.key, DAY)
    end
end

-- Add to a sub-window, or give back to it; what can't be given back any more is void.
local function shift(scope, at, requests_more, tokens_more)
    if at < scope.low then
        if tokens_more <= 0 then return end
        at, requests_more = index, 0
    end
    if at == index then
        scope.r, scope.t = scope.r + requests_more, scope.t + tokens_more
    else
        if requests_more ~= 0 then redis.call('HINCRBY', scope.key, 'r' .. at, requests_more) end
        if tokens_more ~= 0 then redis.call('HINCRBY', scope.key, 't' .. at, tokens_more) end
    end
    scope.requests = scope.requests + requests_more
    scope.tokens = scope.tokens + tokens_more
end

local function read_budget(given)
    local v = redis.call('HMGET', given[1], 'seeded', 'spent', 'held', 'm:' .. process,
        'h:' .. process, 'alerted')
    local budget = {
        key = given[1], limit = given[2], alert = given[3], seeded = v[1], alerted = v[6],
        current = ms >= given[7] and ms < given[8],
        own_spent = given[4], own_held = given[5], wish = given[6], ahead = 0,
    }
    budget.spent = number(v[2]) + given[4] - number(v[4])
    budget.held = number(v[3]) + given[5] - number(v[5])
    budget.joined = not v[5]
    return budget
end

local function read_scope(given)
    local key = given[1]
    local v = redis.call('HMGET', key, 'lo', 'hi', 'R', 'T', 'r' .. index, 't' .. index, 'S',
        's:' .. process, 'P', 'Fr', 'Ft', 'Fn')
    local scope = {
        key = key, rpm = given[2], tpm = given[3], most = given[4], own = given[5],
        low = tonumber(v[1] or index), high = number(v[2]), requests = number(v[3]),
        tokens = number(v[4]), r = number(v[5]), t = number(v[6]),
        full = {r = number(v[10]), t = number(v[11])}, full_need = number(v[12]),
        joined = not v[8], promised = number(v[9]), wish = given[7], ahead = {0, 0, 0}, budgets = {},
    }
    scope.slots = number(v[7]) + given[5] - number(v[8])
    advance(scope)
    local shifts = given[6]
    for i = 1, #shifts, 3 do shift(scope, shifts[i], shifts[i + 1], shifts[i + 2]) end
    for i, budget in ipairs(given[8]) do scope.budgets[i] = read_budget(budget) end
    return scope
end

-- When so much will have left the window that a need fits, those served who were told a time before
-- and have not come yet; the time is promised. nil: never, the need is larger than the limit.
local function promise(scope, kind, queue, need, limit, sum)
    if need > limit then return nil end
    -- Whoever asks again and again soon has all of the minute promised. That is looked up once in a
    -- sub-window, and not for each of them: it takes several times what letting one in takes.
    if scope.full[kind] == index and (kind == 'r' or need >= scope.full_need) then
        return COUNT * WIDTH
    end
    local windows, promises = {}, {}
    for i = scope.low, index do windows[#windows + 1] = kind .. i end
    for i = scope.low - GRACE, index do promises[#promises + 1] = queue .. (i + COUNT) end
    local leaving = redis.call('HMGET', scope.key, unpack(windows))
    local taken = redis.call('HMGET', scope.key, unpack(promises))
    local room = limit - sum
    for i = 1, GRACE do room = room - number(taken[i]) end
    for i = scope.low, index do
        local n = i - scope.low + 1
        local gone = number(leaving[n])
        if i == index then gone = (kind == 'r') and scope.r or scope.t end
        room = room + gone - number(taken[n + GRACE])
        if room >= need then
            redis.call('HINCRBY', scope.key, queue .. (i + COUNT), need)
            scope.promised = i + COUNT
            return (i + COUNT) * WIDTH - ms
        end
    end
    scope.full[kind] = index
    redis.call('HSET', scope.key, 'F' .. kind, index)
    if kind == 't' then
        scope.full_need = need
        redis.call('HSET', scope.key, 'Fn', need)
    end
    return COUNT * WIDTH
end

-- Somebody got in: the oldest promise that is due was theirs.
local function redeem(scope, queue, amount)
    for i = index - GRACE, index do
        local field = queue .. i
        local due = number(redis.call('HGET', scope.key, field))
        if due > 0 then
            local left = due - amount
            if left > 0 then redis.call('HSET', scope.key, field, left) return end
            redis.call('HDEL', scope.key, field)
            amount = -left
            if amount <= 0 then return end
        end
    end
end

local function judge(request, states)
    local worst, wait = nil, -1
    local function refuse(number_of_scope, dimension, after)
        if after > wait then worst, wait = {number_of_scope, dimension, after}, after end
    end
    for i = 4, request[3] > 0 and #request or 0 do
        local n = request[i]
        local scope = states[n]
        for j, budget in ipairs(scope.budgets) do
            if budget.limit >= 0 and not (budget.seeded and budget.current) then
                return {n, 20 + j, 0}
            end
            if budget.limit >= 0 and budget.spent + budget.held + request[2] > budget.limit then
                refuse(n, 10 + j, 1e12)
            end
        end
        if scope.most >= 0 and scope.slots + 1 > scope.most then refuse(n, 3, 0) end
    end
    if worst then return worst end
    for i = 4, #request do
        local n = request[i]
        local scope = states[n]
        if scope.rpm >= 0 and scope.requests + 1 > scope.rpm then
            refuse(n, 1, promise(scope, 'r', 'q', 1, scope.rpm, scope.requests) or 1e12)
        end
        if request[3] > 0 and scope.tpm >= 0 and scope.tokens + request[1] > scope.tpm then
            local need = request[1] > scope.tpm and request[1] or padded(request[1], scope.tpm)
            refuse(n, 2, promise(scope, 't', 'u', need, scope.tpm, scope.tokens) or 1e12)
        end
    end
    return worst
end

local function take(request, states)
    local slots = request[3]
    for i = 4, #request do
        local scope = states[request[i]]
        if scope.promised >= index - GRACE then
            redeem(scope, 'q', 1)
            if scope.tpm >= 0 then redeem(scope, 'u', padded(request[1], scope.tpm)) end
        end
        shift(scope, index, 1, request[1])
        scope.slots, scope.own = scope.slots + slots, scope.own + slots
        for _, budget in ipairs(scope.budgets) do
            if budget.current then
                budget.held = budget.held + request[2]
                budget.own_held = budget.own_held + request[2]
            end
        end
    end
end

-- Ahead of need, from what is ample only: near any limit every request is counted by itself, so that
-- nobody is refused for what another merely keeps. Negative: there is a limit, and it is near.
local function ample(wish, limit, sum)
    if limit < 0 or wish <= 0 then return 0 end
    return (limit - sum) >= 8 * wish and wish or -1
end

-- Slots come back, so that fewer than wished are of use too.
local function ample_slots(wish, limit, sum)
    if limit < 0 or wish <= 0 then return 0 end
    local slots = math.min(wish, math.floor((limit - sum) / 8))
    return slots >= 2 and slots or -1
end

local function lease(scope)
    local r = ample(scope.wish[1], scope.rpm, scope.requests)
    local t = ample(scope.wish[2], scope.tpm, scope.tokens)
    local s = ample_slots(scope.wish[3], scope.most, scope.slots)
    if math.min(r, t, s) < 0 then return end
    for _, budget in ipairs(scope.budgets) do
        budget.more = budget.current and ample(budget.wish, budget.limit, budget.spent + budget.held)
            or 0
        if budget.more < 0 or not budget.seeded then return end
    end
    if r > 0 or t > 0 then shift(scope, index, r, t) end
    scope.slots, scope.own = scope.slots + s, scope.own + s
    scope.ahead = {r, t, s}
    for _, budget in ipairs(scope.budgets) do
        budget.ahead, budget.held = budget.more, budget.held + budget.more
        budget.own_held = budget.own_held + budget.more
    end
end

local function write_budget(budget)
    if budget.joined then redis.call('SADD', 'sluice:q:p:' .. process, budget.key) end
    local crossed = budget.alert >= 0 and budget.seeded and not budget.alerted
        and budget.spent >= budget.alert
    redis.call('HSET', budget.key, 'spent', budget.spent, 'held', budget.held,
        'm:' .. process, budget.own_spent, 'h:' .. process, budget.own_held)
    if crossed then redis.call('HSET', budget.key, 'alerted', ms) end
    return {budget.spent, budget.held, budget.ahead, crossed and 1 or 0}
end

local function write_scope(scope)
    if scope.joined then redis.call('SADD', 'sluice:q:p:' .. process, scope.key) end
    redis.call('HSET', scope.key, 'lo', scope.low, 'hi', index, 'R', scope.requests,
        'T', scope.tokens, 'r' .. index, scope.r, 't' .. index, scope.t,
        'S', scope.slots, 's:' .. process, scope.own, 'P', scope.promised)
    local budgets = {}
    for i, budget in ipairs(scope.budgets) do budgets[i] = write_budget(budget) end
    local a = scope.ahead
    return {scope.requests, scope.tokens, scope.slots, a[1], a[2], a[3], index, budgets}
end

local states, results, told = {}, {}, {}
for i, given in ipairs(scopes) do states[i] = read_scope(given) end
for i, request in ipairs(requests) do
    local refusal = judge(request, states)
    if not refusal then take(request, states) end
    results[i] = refusal or 0
end
for i, scope in ipairs(states) do
    lease(scope)
    told[i] = write_scope(scope)
end
return cmsgpack.pack({ms, results, told})

-- Decide, in one step, all charges of a call: compare the rule-set version, look at every counter, and spend from
-- all of them or from none.
--
-- It touches no key but those in KEYS, all under one tag. All counters are read before the first write: where a server
-- rejects the time or the key of one, nothing is spent. A key of usage that holds another type, or a command that the
-- user may not run, is met later: then what was written stays, and the quota of that call is spent.
--
-- KEYS[1]  the version key, "{namespace:SHARD}:version"
-- KEYS[2…] where there are more keys than the counters: "usage:MINUTE" of this minute, and "recent"; then the counters
--          of the charges, then those of the refunds; then for each note what it needs of "allowed:HOUR:RULE",
--          "rejected:HOUR:RULE" and "hours", "sample:MINUTE" and "sampled"; then "held:ID", unless
--          the ID is empty, and "usage:MINUTE" of each held count. The caller guesses the time: where the minute is
--          not that of the clock, nothing is done
-- ARGV[1]  the caller's version, "EPOCH:NUMBER"; empty = do not compare
-- ARGV[2]  the field of usage: the charges' labels, one a line, and a line with an `a` for each; empty = do not count;
--          to undo, the field that was counted
-- ARGV[3]  doubles: time in us or -1 for TIME, number of charges, number of refunds, mode, the minute in KEYS[2] or -1
--          where there is none, and with a time a number that tells this call from others; then a record for each:
--          algorithm, period, rate, capacity, tick_us, soft_floor, extra, cost, and flags (a charge: 1 gating,
--          2 count_refusals, 4 for each unit that it wants in advance) or the time of the spending (a refund)
-- ARGV[4…] where it comes with more: the number of notes, see engine/partition_stats.py; then what for, label and
--          partition of each, as `noted` in engine/base.py, or field and number of `Extra` in engine/usage; then, if a process has held counts, their id, empty if they
--          come only once, and minute, field and calls of each; see engine/usage/__init__.py for fields of rejections
-- mode     0 check; 1 peek: spend and count nothing; 2 refund, and do nothing else;
--          3 publish: put the version in force where none is; 4 rejected: as a check that is rejected whatever is found;
--          5 undo: refund, and take back what was counted once at that time;
--          and 8 for each of the first refunds that are made before anything is decided, whatever that is
-- Returns  {-1} where no version is held, {-1, epoch, number} where a later one is, {-2, time, then for each charge
--          the time by its clock} where that is not in the calendar window that a record names, or not in the minute
--          that KEYS[2] names, and nothing was done but the first refunds; else {time, then for each charge:
--          remaining, whatever its longest delay; wait (0 = passes at once, -1 = never, below -1 = passes and is held
--          for what it is below); reset; lead of its clock; then, where one wants units, for each how many it got}.
--          Where all waits and leads are 0, as nearly always, they are left out: a server takes as long for a number
--          of a reply as for ten steps of this script
--
-- A line such as `--@look` is replaced by that step of every algorithm, see algorithms/__init__.py; `--@back`, `--@count`
-- and `--@rejected` by back.lua, count.lua and rejected.lua.

local KEYS, ARGV, call, sub, match = KEYS, ARGV, redis.call, string.sub, string.match
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local spread = table.unpack or unpack
local pack, unpack = struct.pack, struct.unpack

-- A key outlives its state by this much, so that a clock stepped back by no more still finds it.
local GRACE_US = 10000000
local USAGE_SECONDS = 8 * 86400
local HELD_SECONDS = 86400
local MAX_CALLERS = 500000
-- See engine/partition_stats.py.
local MAX_WEIGHED, WEIGHED_KEPT, MAX_SAMPLED, SAMPLE_SECONDS = 400, 200, 1000, 7200
local RECORD = '<ddddddddd'
local SHARE = 8 -- see engine/memory/counters.py

local now, charges, refunds, mode, minute, mark = unpack('<dddddd', ARGV[3])
local counts = minute >= 0
local first = counts and 3 or 1 -- the counters stand behind this key

-- One command reads all, since each costs as much as what is computed from its reply. It passes over a key that holds
-- another type: another program wrote it, and it is as good as missing. So is a value that is not of a state's size.
local found = call('MGET', KEYS[1], spread(KEYS, first + 1, first + charges))

local raises = false
if ARGV[1] ~= '' then
  local held = found[1]
  if held ~= ARGV[1] then
    local epoch, number = match(held or '', '^(%d+):(%d+)$')
    if epoch and #epoch < 17 and #number < 17 then -- else another program wrote it: it is as good as missing
      local my_epoch, my_number = match(ARGV[1], '^(%d+):(%d+)$')
      epoch, number, my_epoch, my_number = tonumber(epoch), tonumber(number), tonumber(my_epoch), tonumber(my_number)
      if epoch > my_epoch or (epoch == my_epoch and number > my_number) then return { -1, epoch, number } end
    elseif mode ~= 3 then
      return { -1 }
    end
    raises = true
  end
end

local timed = now < 0 -- by the clock that keys expire by
if timed then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local returns = floor(mode / 8)
mode = mode % 8
for i = charges + 1, charges + returns do
  --@back
end
if returns > 0 then found = call('MGET', KEYS[1], spread(KEYS, first + 1, first + charges)) end

local decides = mode == 0 or mode == 4
-- Tables grow slowly: this one and the reply begin with the room that they nearly always take.
local levels, rejected, plain, takes = { 0, 0, 0 }, mode == 4, true, nil
local elsewhere = counts and minute ~= floor(now / 60000000)
for i = 1, charges do
  local id, period, rate, capacity, tick_us, soft_floor, extra, cost, flags = unpack(RECORD, ARGV[3], 72 * i - 23)
  local raw, at, last = found[i + 1], now, nil
  if raw then
    --@whole
  end
  if raw then
    last = unpack('<i7', raw)
    if last > now then at, plain = last, false end -- time that runs backwards stands still
  end
  local remaining, x, y, state
  --@look
  if remaining < 0 then elsewhere = true end
  local passes, delay, expires, holds, ends = cost <= remaining, 0, nil, false, false
  --@traits
  if holds or ends then
    local spent, reset = 0, nil
    --@reset
    if holds then
      delay, passes = reset, passes and (reset <= extra or cost == 0)
    elseif timed and at == now and not state then
      expires = reset
    end
  end
  if not passes or delay > 0 then plain = false end
  if not passes and flags % 2 == 1 then rejected = true end
  levels[i] = {
    remaining, x, y, at, raw, state, passes, delay, expires,
    id, period, rate, capacity, tick_us, soft_floor, extra, cost, flags,
  }
end

if elsewhere then
  local reply = { -2, floor(now) }
  for i = 1, charges do reply[i + 2] = floor(levels[i][4]) end
  return reply
end

if raises then call('SET', KEYS[1], ARGV[1]) end

local reply = charges > 2 and { now, 0, 0, 0, 0, 0, 0 } or charges > 0 and { now, 0, 0 } or { now }
local field, rejecting = ARGV[2], false
for i = 1, charges do
  local remaining, x, y, at, raw, state, passes, delay, expires, id, period, rate, capacity, tick_us,
    soft_floor, extra, cost, flags = spread(levels[i], 1, 18)
  local spends, spent = decides and cost > 0, 0
  if passes then spends = spends and not rejected else spends = spends and flags % 4 >= 2 end
  if flags >= 4 then
    takes = takes or {}
    takes[i] = spends and passes and max(min(floor(flags / 4), floor((remaining - cost) / SHARE), remaining - cost - soft_floor), 0) or 0
    cost = cost + takes[i]
  end
  if spends then
    local before = x
    x = cost <= capacity - x and x + cost or max(x, capacity) -- but in a bucket
    --@spend
    if passes then
      remaining, spent = remaining - cost, cost
    else -- what did not fit may have pushed out what was there
      local last = at
      raw = state
      --@look
    end
  end
  local lead, wait, reset = at - now, 0, nil
  --@reset
  if cost > capacity then
    wait = -1
  elseif not passes then
    if cost > remaining then
      --@wait
    end
    if delay > 0 then wait = max(wait, reset - extra) end
    wait = wait + lead
  elseif delay > 0 then
    wait = -1 - delay
  end
  if reset > 0 then reset = reset + lead end
  if state and reset == expires then
    call('SET', KEYS[first + i], state, 'KEEPTTL') -- it expires when it would anyway, and this costs less
  elseif state then
    call('SET', KEYS[first + i], state, 'PX', ceil((reset + GRACE_US) / 1000))
  elseif wait > 0 and decides and call('PTTL', KEYS[first + i]) < ceil(reset / 1000) then
    -- Spent under a higher quota, it would be forgotten before it passes by this one.
    call('PEXPIRE', KEYS[first + i], ceil((reset + GRACE_US) / 1000))
  end
  if plain then
    reply[2 * i], reply[2 * i + 1] = remaining, reset
  else
    local base = 4 * i - 2
    reply[base], reply[base + 1], reply[base + 2], reply[base + 3] = remaining, wait, reset, lead
  end
  local outcome = not passes and 'd' or rejected and 'o' or remaining < soft_floor and 's'
  if field ~= '' and outcome then
    if not passes then rejecting = rejecting and rejecting .. '\n\t' .. KEYS[first + i] or KEYS[first + i] end
    local letter = i - charges - 1 -- of this charge, counted from the end
    field = sub(field, 1, letter - 1) .. outcome .. (i < charges and sub(field, letter + 1) or '')
  end
end

if mode == 2 or mode == 5 or rejected and decides then
  for i = charges + returns + 1, charges + refunds do
    --@back
  end
end

local counted
if field ~= '' then
  local usage, calls = KEYS[2], mode == 5 and -1 or 1
  --@count
end
-- Of rejections that are counted alike in a minute, the first are recorded one by one, and later ones now and then, for
-- many: a flood pays for few records.
local records = rejecting and (counted <= 20 or counted % 20 == 0)
if records then
  field = string.gsub(field, '\v[^\t\n]*', '\v')
  local name, weight, step = field .. '\n\t' .. rejecting, counted > 20 and 20 or 1, floor(now / 250000)
  --@rejected
  if counted % 20 == 0 then call('HSET', KEYS[3], field, step) end
end

local notes, key = ARGV[4] and 3 * tonumber(ARGV[4]) or 0, first + charges + refunds -- the key before those that come next
if notes > 0 then
  local byte, hour = string.byte, floor(minute / 60)
  for i = 5, 2 + notes, 3 do
    local what, label, partition = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local is_sampled, weight = byte(what, 1, 2)
    local passed = true
    for place = 3, #what do passed = passed and levels[byte(what, place)][7] end
    if records and not passed or #what == 2 then -- #what == 2: of a caller that an earlier call has rejected
      local caller, tail = match(partition, '^(.*)\t(.+)$')
      if tail then call('HSET', KEYS[3], '\t' .. caller, tail) end
    end
    if weight > 0 then
      if weight > 1 then weight = weight + 1 / 1048576 end -- a fraction marks an estimate
      local set, hours = KEYS[passed and key + 1 or key + 2], KEYS[key + 3]
      key = key + 3
      -- What another rule rejects is neither allowed nor rejected by this one.
      if not (passed and rejected) and tonumber(call('ZINCRBY', set, weight, partition)) == weight then -- perhaps new
        local members = call('ZCARD', set)
        if members == 1 then
          call('EXPIRE', set, USAGE_SECONDS)
          if call('SADD', hours, hour .. ':' .. match(label, '^[^|]*')) == 1 then call('EXPIRE', hours, USAGE_SECONDS) end
        end
        if members > MAX_WEIGHED then call('ZREMRANGEBYRANK', set, 0, -1 - WEIGHED_KEPT) end
      end
    end
    if is_sampled == 2 and passed and not rejected or is_sampled == 3 and rejected then
      local usage, field, calls, counted = KEYS[2], label, tonumber(partition), nil
      --@count
    elseif is_sampled > 3 then -- the weight, plus 3, of a caller that an earlier call has noted as allowed
      local allowed, denied = KEYS[key + 1], KEYS[key + 2]
      key = key + 2
      if rejected then
        call('ZINCRBY', allowed, 3 - is_sampled, partition)
        call('EXPIRE', allowed, USAGE_SECONDS)
        if byte(label) == 42 then -- "*": over all rules
          call('ZINCRBY', denied, is_sampled - 3, partition)
          call('EXPIRE', denied, USAGE_SECONDS)
        end
      end
    elseif is_sampled == 1 then
      local samples, sampled, field = KEYS[key + 1], KEYS[key + 2], label .. '\n' .. partition
      key = key + 2
      if call('HINCRBY', samples, field, 1) == 1 then
        local partitions = call('HLEN', samples)
        if partitions > MAX_SAMPLED then call('HDEL', samples, field) end
        if partitions == 1 then
          call('SADD', sampled, string.format('%d', minute))
          call('EXPIRE', samples, SAMPLE_SECONDS)
          call('EXPIRE', sampled, SAMPLE_SECONDS)
        end
      end
    end
  end
end

local id = ARGV[5 + notes]
if id then
  if id ~= '' then key = key + 1 end
  if id == '' or call('SET', KEYS[key], '', 'NX', 'EX', HELD_SECONDS) then
    local prefix = '\n\t' .. sub(KEYS[1], 1, #KEYS[1] - 7) -- all but "version"
    for i = 6 + notes, #ARGV, 3 do
      key = key + 1
      local usage, minute, entry, calls = KEYS[key], ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
      local step, named = min(floor(now / 250000), minute * 240 + 239), string.find(entry, '\n\t', 1, true)
      local field, counted = named and sub(entry, 1, named - 1) or entry, nil
      --@count
      if named then
        local name, weight = string.gsub(string.gsub(entry, '\v[^\t\n]*', '\v'), '\n\t', function() return prefix end), calls
        --@rejected
      end
      if id ~= '' and (counted >= 20 or not named) and match(field, '\n%a*[dD]%a*$') then
        call('HSET', KEYS[3], string.gsub(field, '\v[^\t\n]*', '\v'), step)
      end
    end
  end
end

for i = 1, takes and charges or 0 do reply[#reply + 1] = takes[i] or 0 end

if math.type then -- Lua 5.4 knows floats, and servers send those as texts
  for i = 1, #reply do reply[i] = floor(reply[i]) end
end
return reply

-- A part of check.lua: record whom this call has refused, see engine/usage/__init__.py. Of refusals that are counted alike, the
-- first of each minute are recorded, and later ones now and then, for many: a flood pays for few records. They stand in
-- one hash with the minutes that are not closed, so that each call names one key less. It is there when usage is counted:
-- a key that is not would keep a cluster from deciding while it moves the shard.
if refused and (counted <= 100 or counted % 100 == 0) then
  local PAUSE_US, MAX_LISTED, KEPT, KEPT_OF_SHADOWS = 3600000000, 1000, 500, 250
  local OLDEST_MINUTES = 9 * 1440 -- their usage has expired
  local ENTRY = '^(%d+) (%d+) (%d+) (~?)'
  local list, place, weight = KEYS[3], 0, counted > 100 and 100 or 1
  for label in string.gmatch(ARGV[2], '([^\n]*)\n') do
    place = place + 1
    if label ~= '' and not levels[place][7] then
      local name = sub(KEYS[first + place], #KEYS[1] - 6) -- without what all keys begin with
      local entry, since, times = call('HGET', list, name), now, 0
      if entry then
        local last, began, before = match(entry, ENTRY)
        if now - tonumber(last) < PAUSE_US then since, times = tonumber(began), tonumber(before) end
      end
      -- Long enough to make the hash a table, which does not cost more with each field.
      entry = string.format('%.0f %.0f %040.0f %s', now, since, times + weight, label)
      local size = call('HSET', list, name, entry) == 1 and call('HLEN', list) or 0
      -- Keep the latest. Minutes that nobody collects stay as well: then this is looked at now and then (< 2: a new
      -- minute and a new refusal may add two at once).
      if size == MAX_LISTED + 1 or (size > MAX_LISTED and size % 64 < 2) then
        local all, ends, gone = call('HGETALL', list), { [''] = {}, ['~'] = {} }, {}
        for i = 2, #all, 2 do
          local last, _, _, shadow = match(all[i], ENTRY)
          if last then table.insert(ends[shadow], tonumber(last)) end
        end
        for shadow, times in pairs(ends) do
          table.sort(times)
          times.oldest = times[#times + 1 - (shadow == '' and KEPT or KEPT_OF_SHADOWS)] or 0
        end
        for i = 2, #all, 2 do
          local last, _, _, shadow = match(all[i], ENTRY)
          local useless = last and tonumber(last) < ends[shadow].oldest
          if not last then useless = now / 60000000 - (tonumber(all[i - 1]) or 0) > OLDEST_MINUTES end
          if useless and #gone < MAX_LISTED then gone[#gone + 1] = all[i - 1] end
        end
        if #gone > 0 then call('HDEL', list, (table.unpack or _G.unpack)(gone)) end
      end
    end
  end
end

-- Leaky bucket as a queue. State: as of token_bucket. See leaky_bucket.py, the twin of this file.
local bucket = algorithm('token_bucket')
local HOLDS = true -- an admitted request is held until the reset that it found

return { bucket[1], bucket[2], bucket[3], bucket[4], bucket[5], bucket[6], HOLDS }

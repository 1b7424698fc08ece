-- Leaky bucket as a queue. State: as of token_bucket. See leaky_bucket.py, the twin of this file.
--@from token_bucket

--@traits
holds = true

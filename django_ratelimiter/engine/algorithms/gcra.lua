-- GCRA. State: as of token_bucket. See gcra.py, the twin of this file.
return algorithm('token_bucket')

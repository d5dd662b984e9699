"""The registry: versions of one's own models, and which of them serves whom.

versions    what is known of a version (values)
stages      what a change of stage means for the other versions (pure)
store       versions in Postgres
merge       the registry's models beside the configuration's (pure)
prices      prices that change while requests are in progress
sync        keeps a gateway's catalogue as the registry has it
"""

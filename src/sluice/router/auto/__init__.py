"""`model: auto`: which model answers, by how much a request needs a strong one.

documents      what an operator says: tiers of models, and weights of deployments (values)
table          the documents in force, by alias and team
needs          what a request needs of a model (pure)
calibration    thresholds that give each tier its share of a team's own traffic
standings      what a conversation had until now
decision       from a score to models in order (pure)
choice         why a request goes where it goes (values)
alias          what a name stands for, and what was decided of requests alike
_native        the same, compiled, for requests that are like earlier ones
router         the stage of the request's path that does all this
"""

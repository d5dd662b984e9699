"""The loop that teaches `auto` by its own traffic: outcomes come in as labels, models are trained
on them, and what proves better is promoted.

    labels.py           what is known of answers
    feedback.py         what callers say of them
    observer.py         answers are looked at, after they were sent
    signals.py          what answers themselves show (pure)
    comparison.py       the same asked of the other tier, for a judge to compare
    judging.py          what judges are asked, and what they said (pure)
    spending.py         what comparisons may cost a day
    traffic.py          what the loop reads of requests and labels
    examples.py         labels become rows to train on (pure)
    retraining.py       a candidate, and whether it is better (no I/O)
    drift.py            whether the traffic is still what the model was made for (pure)
    loop.py             does it all on schedule, one process at a time
    health.py           how the loop found things, for gateways to show
    models.py           the models as versions in Postgres
    scorer_sync.py      gateways follow the models
"""

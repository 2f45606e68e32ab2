"""Several processes that train as one learner: how they find each other, what they send each other, how they
end together, and `cleanba launch`, which starts them all on one machine.

Imports sebulba (for its channel) and everything below it. The collectives themselves belong to the learner.
"""

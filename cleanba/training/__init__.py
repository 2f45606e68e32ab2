"""Where everything meets: one run from its arguments to its outcome. `train.py` tells the story, `setup.py`
and `build.py` put the parts together, `threads.py` runs them, `open_records.py` opens the records,
`finish.py` evaluates and uploads the result.

Imports everything below it: records, evaluation, distributed, sebulba, agents, envs, runtime, config.
"""

"""Jobs of one run: what they consist of, and the files and commands that hand them to a scheduler.

Owns: what a job consists of (`spec.py`), the commit that it runs (`code.py`), schedulers such as Slurm (`targets/`).
Does not own: the processes of a job on this machine (`processes/`), what a process does (`runs/run.py`), how processes
find each other (`distributed/cluster.py`).
"""

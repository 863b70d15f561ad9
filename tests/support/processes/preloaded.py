"""A module that knows which process imported it, and brings a generator of random numbers with it."""

import os

import numpy.random

PID = os.getpid()
assert numpy.random.rand() >= 0

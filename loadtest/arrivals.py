"""When requests are due, fixed before the first is sent, so that a slow server cannot slow its own load down."""

import numpy as np


def poisson_arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Due times in seconds from the start, ascending, of a Poisson process of ``rate`` requests a second.

    Raises:
        ValueError: rate or duration is not positive.
    """
    if rate <= 0 or seconds <= 0:
        raise ValueError(f"rate and seconds must be positive, got {rate} and {seconds}")
    random = np.random.default_rng(seed)
    due = np.cumsum(random.exponential(1 / rate, int(rate * seconds * 1.5) + 50))
    return [float(time) for time in due if time < seconds]

import pytest

from service.api.quota import Bucket
from service.errors import QuotaError


def test_a_bucket_gives_its_burst_then_its_rate_and_says_when() -> None:
    now = [0.0]
    bucket = Bucket(2.0, 3.0, lambda: now[0])
    for _ in range(3):
        bucket.enter()
    with pytest.raises(QuotaError) as refused:
        bucket.enter()
    assert refused.value.retry_after_seconds == 1
    now[0] = 0.5
    bucket.enter()
    with pytest.raises(QuotaError):
        bucket.enter()


def test_a_charge_goes_into_debt_and_is_paid_off_in_time() -> None:
    now = [0.0]
    bucket = Bucket(10.0, 10.0, lambda: now[0])
    bucket.enter()
    bucket.charge(99)
    with pytest.raises(QuotaError) as refused:
        bucket.enter()
    assert refused.value.retry_after_seconds == 10
    now[0] = 9.1
    bucket.enter()


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    now = [0.0]
    bucket = Bucket(1.0, 2.0, lambda: now[0])
    now[0] = 1000.0
    bucket.enter()
    bucket.enter()
    with pytest.raises(QuotaError):
        bucket.enter()

"""A real child process whose host is the parrot of `engine_fakes`."""

from loadtest.engine import child

if __name__ == "__main__":
    child.HOSTS = {"ours": "tests.unit.loadtest.engine_fakes"}  # type: ignore[attr-defined]
    child.main()

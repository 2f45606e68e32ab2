import pytest
from helpers.jobs import start_processes


@pytest.fixture
def start(tmp_path):
    """Starts jobs in the test's folder. No process outlives the test."""
    started = []

    def start(*inputs, **options):
        job = start_processes(tmp_path, *inputs, **options)
        started.extend(job)
        return job

    yield start
    for process in started:
        process.popen.kill()
        process.popen.wait()

from typed_use import main


def test_the_typed_example_runs(tmp_path):
    assert main(tmp_path) > 0

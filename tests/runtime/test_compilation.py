import jax

from cleanba.runtime.compilation import compiler_options


def test_options_that_xla_does_not_know_are_left_out(monkeypatch):
    compiler_options.cache_clear()
    assert compiler_options(), "if this XLA has no such option any more, compilation.py can do without it"

    def refuse(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: No such compile option")

    compiler_options.cache_clear()
    monkeypatch.setattr(jax, "jit", refuse)
    assert compiler_options() == {}
    compiler_options.cache_clear()

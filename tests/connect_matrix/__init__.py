"""The integration tests against other servers than the installed pyspark's: ``make test-matrix``.

``__main__`` runs them and prints the table; ``servers`` starts a server in its environment, where ``serve`` runs;
``unsupported.toml`` says what a server cannot do, by the tests that fail there.
"""

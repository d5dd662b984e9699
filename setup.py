"""The compiled part of the scorer; everything else about the package is in pyproject.toml.

It is optional: where no C compiler is at hand the build warns, and the Python modules do its work.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "sluice.router.complexity._native",
            ["src/sluice/router/complexity/_native.pyx"],
            optional=True,
            # Each product is rounded by itself, as in Python, so that scores are the same.
            extra_compile_args=["-ffp-contract=off"],
        )
    ]
)

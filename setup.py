"""The compiled parts of the scorer and of `auto`; all else about the package is in pyproject.toml.

They are optional: where no C compiler is at hand the build warns, and Python modules do the same.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"sluice.router.{part}._native",
            [f"src/sluice/router/{part}/_native.pyx"],
            optional=True,
            # Each product is rounded by itself, as in Python, so that scores are the same.
            extra_compile_args=["-ffp-contract=off"],
        )
        for part in ("complexity", "auto")
    ]
)

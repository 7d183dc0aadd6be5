"""Fit the costs of traced modules to the measured steps of some: `python -m benchmarks.accuracy.fit_modules`.

Constants of the GPU are those of the catalogue. The printed values are copied by hand to engines.yaml and
`refold.planning.perf.module_totals`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from benchmarks.accuracy.calibrate import is_fitted_on
from benchmarks.accuracy.cases import Batch, Vector, measured_seconds
from benchmarks.accuracy.device import module_cases
from refold.planning.catalogue import find_engine, find_gpu
from refold.planning.perf import ModuleCosts

PRIOR_WEIGHT = 0.2
"""Weight of a deviation from the first guess, which few modules determine: natural logarithm."""

START = ModuleCosts(elementwise=1.3, batch_norm=2.0, depthwise=5.0, convolution=2.0, convolution_share=0.7)
LAUNCH_SECONDS = 9.5e-6


def main() -> None:
    """Fit and print."""
    from scipy.optimize import least_squares

    names = [field.name for field in msgspec.structs.fields(ModuleCosts)]
    start = np.log([*(getattr(START, name) for name in names), LAUNCH_SECONDS])

    def residuals(logarithms: Vector) -> Vector:
        values = np.exp(logarithms)
        costs = ModuleCosts(**dict(zip(names, values.tolist(), strict=False)))
        errors = log_errors(costs, float(values[-1]), fitted=True)
        return np.concatenate([errors, PRIOR_WEIGHT * (logarithms - start)])

    found = np.exp(least_squares(residuals, start, loss="soft_l1", f_scale=0.15, diff_step=0.01).x)
    for name, value in zip([*names, "operation_launch_seconds"], found.tolist(), strict=True):
        print(f"{name}: {value:.3g}")
    costs = ModuleCosts(**dict(zip(names, found.tolist(), strict=False)))
    for fitted in (True, False):
        shares = np.abs(np.exp(log_errors(costs, float(found[-1]), fitted=fitted)) - 1)
        kind = "fitted" if fitted else "held out"
        print(f"{kind}: median error {np.median(shares):.1%}, p90 {np.quantile(shares, 0.9):.1%}, {len(shares)} rows")


def log_errors(costs: ModuleCosts, launch_seconds: float, *, fitted: bool) -> Vector:
    """Return the logarithms of estimated / measured step times of the modules that are fitted, or of the others."""
    cases = [case for case in module_cases(costs) if is_fitted_on(case) == fitted]
    engine = msgspec.structs.replace(find_engine("pytorch-bf16"), operation_launch_seconds=launch_seconds)
    return np.log(Batch(cases).predict(find_gpu, lambda _: engine).seconds / measured_seconds(cases))


if __name__ == "__main__":
    main()

from .diagnosing import diagnose as diagnose
from .tracing import explain_gradient as explain_gradient

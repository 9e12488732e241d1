from ._flight import FlightRecorder as FlightRecorder
from .diagnosing import diagnose as diagnose
from .tracing import explain_gradient as explain_gradient

"""torch semantics: functions on tensors, the operator, the call cache, and the override of aten ops."""

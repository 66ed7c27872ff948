target_sources(${target} PRIVATE gpu/on_device.c ops/op_check.c ops/op_run.c ops/guard.c $<TARGET_OBJECTS:remat_ops_f64>)

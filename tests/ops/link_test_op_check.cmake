target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/examples/softsign.c ${CMAKE_SOURCE_DIR}/examples/softsign_f64.c
               $<TARGET_OBJECTS:remat_ops_f64>)

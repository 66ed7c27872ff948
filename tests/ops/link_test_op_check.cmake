target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/examples/softsign.c ${CMAKE_SOURCE_DIR}/examples/softsign_f64.c
               $<TARGET_OBJECTS:remat_ops_f64>)
target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/engine) # where <remat_op.h> is before it is installed

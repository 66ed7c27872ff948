# ops/math/vecmath.h takes the vector width of the file that includes it: test the one this machine runs.
target_compile_options(${target} PRIVATE -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(${target} PRIVATE ${REMAT_NATIVE_FLAGS})
endif()

# The ops once more, with their CUDA columns, whose kernels are compiled as C++ for the CPU (shim.h). They take the place of
# the library's own, which is an archive: what is defined here is not looked for there.
if(NOT TARGET remat_ops_emulated)
  file(GLOB_RECURSE emulated_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ops/*.cu)
  list(TRANSFORM op_sources PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE emulated_ops)
  list(TRANSFORM optimizer_sources PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE emulated_optimizers)
  add_library(remat_ops_emulated OBJECT ${emulated_ops} ${emulated_optimizers} ${CMAKE_SOURCE_DIR}/ops/registry.c
              ${emulated_kernels} cuda/mutants.cu cuda/shim.cc cuda/product.c)
  set_source_files_properties(${emulated_kernels} cuda/mutants.cu PROPERTIES LANGUAGE CXX
                              COMPILE_OPTIONS "-x;c++")
  set_target_properties(remat_ops_emulated PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON)
  target_include_directories(remat_ops_emulated PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(remat_ops_emulated PRIVATE RM_CUDA_EMULATED)
  target_compile_options(remat_ops_emulated PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti>
                         -ffp-contract=off)
  target_link_libraries(remat_ops_emulated PRIVATE OpenMP::OpenMP_C)
endif()
target_sources(${target} PRIVATE $<TARGET_OBJECTS:remat_ops_emulated> $<TARGET_OBJECTS:remat_ops_f64>)
set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C) # nothing of the C++ library is used

# Fake libraries for test_nccl.c, and their paths. The test itself calls them only through Remat.
if(TARGET remat_nccl_headers)
  set(fake ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/fake_nccl)
  add_library(fake_cudart SHARED ${fake}/fake_cuda.c)
  add_library(fake_nccl SHARED ${fake}/fake_nccl.c ${fake}/fake_ring.c)
  target_link_libraries(fake_cudart PRIVATE remat_nccl_headers Threads::Threads)
  target_link_libraries(fake_nccl PRIVATE fake_cudart remat_nccl_headers Threads::Threads)
  # gcc 12's LeakSanitizer fails on thread-local data of libraries that were opened later.
  target_compile_options(fake_cudart PRIVATE -ftls-model=initial-exec)
  target_compile_options(fake_nccl PRIVATE -ftls-model=initial-exec)
  target_link_libraries(${target} PRIVATE remat_nccl_headers)
  target_compile_definitions(${target} PRIVATE FAKE_CUDART="$<TARGET_FILE:fake_cudart>" FAKE_NCCL="$<TARGET_FILE:fake_nccl>")
  add_dependencies(${target} fake_cudart fake_nccl)
endif()

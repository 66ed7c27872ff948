# The CUDA device and NCCL's ranks on one fake of both. Needs CUDA's and NCCL's headers.
if(TARGET remat_nccl_headers AND CUBLAS_INCLUDE_DIR)
  set(fake_cuda ${CMAKE_CURRENT_SOURCE_DIR}/engine/fake_cuda)
  set(fake_nccl ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/fake_nccl)
  set(device ${CMAKE_SOURCE_DIR}/engine/cuda)
  add_library(fake_collectives OBJECT ${fake_nccl}/fake_nccl.c ${fake_nccl}/fake_ring.c)
  target_compile_definitions(fake_collectives PRIVATE fake_push=fake_push_collective)
  target_link_libraries(fake_collectives PRIVATE remat_nccl_headers)
  add_library(fake_gpus SHARED ${fake_cuda}/fake_memory.c ${fake_cuda}/fake_order.c ${fake_cuda}/fake_calls.c
              ${fake_cuda}/fake_lt.c ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/fake_gpus/joint.c
              $<TARGET_OBJECTS:fake_collectives>)
  target_sources(${target} PRIVATE ${fake_cuda}/stand_ins.c ${device}.c ${device}_algorithm.c ${device}_context.c
                 ${device}_error.c ${device}_graph.c ${device}_library.c ${device}_product.c ${device}_queue.c
                 ${device}_store.c)
  foreach(user fake_gpus ${target})
    target_include_directories(${user} PRIVATE ${CMAKE_SOURCE_DIR})
    target_include_directories(${user} SYSTEM PRIVATE ${CUDART_INCLUDE_DIR} ${CUBLAS_INCLUDE_DIR})
  endforeach()
  target_link_libraries(fake_gpus PRIVATE remat_nccl_headers Threads::Threads)
  # LeakSanitizer of gcc 12 stumbles over what threads keep in libraries that were opened later.
  target_compile_options(fake_gpus PRIVATE -ftls-model=initial-exec)
  target_compile_options(fake_collectives PRIVATE -ftls-model=initial-exec)
  set_target_properties(fake_collectives PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PRIVATE remat_nccl_headers fake_gpus OpenMP::OpenMP_C ${CMAKE_DL_LIBS} m)
  target_compile_definitions(${target} PRIVATE FAKE_CUDA="$<TARGET_FILE:fake_gpus>" RM_CUDA_FOLDER="" HAVE_CUDA_HEADERS)
endif()

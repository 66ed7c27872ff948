# The CUDA device needs CUDA's headers to be compiled, and nothing else of it here: the fake stands in for its libraries. It
# is compiled into the test, so that builds without CUDA test it, too.
find_path(CUBLAS_INCLUDE_DIR cublas_v2.h HINTS "${CUDART_INCLUDE_DIR}" $ENV{CUDA_HOME} /usr/local/cuda PATH_SUFFIXES include)
if(CUDART_INCLUDE_DIR AND CUBLAS_INCLUDE_DIR)
  set(fake ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/fake_cuda)
  set(device ${CMAKE_SOURCE_DIR}/engine/cuda)
  get_filename_component(cuda_folder "${CUDART_LIBRARY}" DIRECTORY)
  if(NOT TARGET fake_cuda)
    add_library(fake_cuda SHARED ${fake}/fake_memory.c ${fake}/fake_order.c ${fake}/fake_calls.c ${fake}/fake_lt.c)
  endif()
  target_sources(${target} PRIVATE ${fake}/stand_ins.c ${device}.c ${device}_context.c ${device}_error.c
                 ${device}_graph.c ${device}_library.c ${device}_algorithm.c ${device}_product.c ${device}_queue.c
                 ${device}_store.c)
  foreach(user fake_cuda ${target})
    target_include_directories(${user} PRIVATE ${CMAKE_SOURCE_DIR})
    target_include_directories(${user} SYSTEM PRIVATE ${CUDART_INCLUDE_DIR} ${CUBLAS_INCLUDE_DIR})
  endforeach()
  target_link_libraries(${target} PRIVATE fake_cuda OpenMP::OpenMP_C ${CMAKE_DL_LIBS} m)
  target_compile_definitions(${target} PRIVATE FAKE_CUDA="$<TARGET_FILE:fake_cuda>" RM_CUDA_FOLDER="${cuda_folder}"
                             HAVE_CUDA_HEADERS)
endif()

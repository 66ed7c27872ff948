target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/bench/lifetimes_csv.c)

# depth.gp: plots the output of bench_depth.  gnuplot -e "table='depth.txt'; picture='depth.png'" bench/depth.gp
set terminal pngcairo size 720,420 font "sans,11"
set output picture
set logscale xy 2
set xlabel "residual blocks, of two convolutions each"
set ylabel "activations, MiB"
set xrange [4:256]
set key left top
set grid
set datafile separator "|,"
plot table skip 4 using 2:3 with linespoints title "none", \
     table skip 4 using 2:5 with linespoints title "sqrt", \
     table skip 4 using 2:7 with linespoints title "optimal, in sqrt's bytes", \
     table skip 4 using 2:9 with linespoints title "optimal, the least"

module topics.bench/loadgen

go 1.19

# style.awk: lines over 120 columns (a tab counts to the next multiple of 8), functions over 60 lines, files over 700, white space at
# line ends, in C files of the house style: a function's body stands between a "{" and a "}" in the first column.
function bad(line, text) {
	printf "%s:%d: %s\n", FILENAME, line, text
	errors++
}
function width(s,    i, n, col) {
	n = length(s)
	if (index(s, "\t") == 0)
		return n
	for (i = 1; i <= n; i++)
		col = substr(s, i, 1) == "\t" ? col + 8 - col % 8 : col + 1
	return col
}
FNR == 1 {
	if (file != "" && last > 700)
		printf "%s: %d lines, is it one subject?\n", file, last
	file = FILENAME
	start = 0
}
{ last = FNR }
length($0) > 60 && width($0) > 120 { bad(FNR, "line of " width($0) " columns") }
/[ \t]$/ { bad(FNR, "white space at the end of a line") }
/^\{/ { start = FNR }
/^\}/ && start {
	if (FNR - start - 1 > 60)
		bad(start, "function of " FNR - start - 1 " lines")
	start = 0
}
END {
	if (last > 700)
		printf "%s: %d lines, is it one subject?\n", file, last
	exit errors > 0
}

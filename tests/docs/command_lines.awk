# command_lines.awk: prints the command lines of pages, one per line: PAGE:LINE, a tab, the command without prompt and remarks. Command
# lines are all lines of blocks marked sh, lines in other blocks and lines indented by four spaces, and text between backticks (but not a
# name alone, like `scripts/test.sh`). In blocks other than sh, two spaces start a remark.

function is_command(text) {
    return text ~ /^([A-Z_]+=[^ ]+ )*(remat|srun|sbatch|mpirun|torchrun|cmake|ctest|cpack|cc|cd|export|kill|python3?|pip|man|clang-format|(\.|scripts|bench|tests|build|examples)\/[^ ]*)( |$)/ &&
        text !~ /^remat [a-z]+:/
}

function put(text, remarks,   head) {
    if (remarks) {
        match(text, /^(remat +[a-z]+ +)?/)
        head = substr(text, 1, RLENGTH)
        text = substr(text, RLENGTH + 1)
        if (match(text, /   *[^ <>-]/)) text = substr(text, 1, RSTART - 1)
        text = head text
    }
    gsub(/ +/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    print FILENAME ":" began "\t" text
}

function end_paragraph(   n, part, i) {
    n = split(paragraph, part, "`")
    for (i = 2; i <= n; i += 2)
        if (is_command(part[i]) && part[i] ~ / /) put(part[i], 0)
    paragraph = ""
}

function code(text, shell) {
    if (text ~ /[^\1-\176]/ && !shell) return # a drawing
    sub(/^(host[A-Z])?\$ /, "", text)
    if (joined == "") began = FNR
    sub(/(^|  *)# .*/, "", text)
    sub(/^ +/, joined == "" ? "" : " ", text)
    if (text ~ /\\$/) {
        joined = joined substr(text, 1, length(text) - 1)
        return
    }
    text = joined text
    joined = ""
    if (text != "" && (shell || is_command(text))) put(text, !shell)
}

FNR == 1 { end_paragraph(); block = "" }
/^```/ { end_paragraph(); block = block == "" ? $0 : ""; next }
block != "" { if (block !~ /^```(c|python|json)$/) code($0, block == "```sh"); next }
/^    / { end_paragraph(); code(substr($0, 5), 0); next }
/^$/ { end_paragraph(); next }
{ if (paragraph == "") began = FNR; paragraph = paragraph " " $0 }
END { end_paragraph() }

#include "base/opt.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/std_fds.h"
#include "base/version.h"

int opt_verbose;

enum { MAX_OPTS = 96 };

static bool want_help, want_version, want_options;
static bool given[MAX_OPTS]; /* on the command line: the program's by their place in its table, then ours */
static int quiet;

static const struct opt common[] = {
	{ .name = "help", .letter = 'h', .help = "show this and exit", .type = OPT_FLAG, .dst = &want_help },
	{ .name = "version", .letter = 'V', .help = "show the version and exit; with -v how it was built",
		.type = OPT_FLAG, .dst = &want_version },
	{ .name = "options", .help = "list the options, separated by tabs, for completion", .type = OPT_FLAG,
	  .dst = &want_options },
	{ .name = "verbose", .letter = 'v', .help = "say more on stderr", .type = OPT_COUNT, .dst = &opt_verbose },
	{ .name = "quiet", .letter = 'q', .help = "say less on stderr", .type = OPT_COUNT, .dst = &quiet },
};

static size_t gather(const struct opt_program *p, const struct opt **all)
{
	size_t n = 0;

	for (const struct opt *o = p->opts; o && o->name && n < MAX_OPTS - ARRAY_LEN(common); o++)
		all[n++] = o;
	for (size_t i = 0; i < ARRAY_LEN(common); i++)
		all[n++] = &common[i];
	return n;
}

/* ---- values ---- */

static int list_add(struct opt_list *l, const char *v)
{
	const char **p = mem_realloc(l->v, l->n + 1, sizeof(*p));

	if (!p)
		return -1;
	l->v = p;
	l->v[l->n++] = v;
	return 0;
}

static int set_value(const struct opt *o, const char *v)
{
	bool bounded = o->min || o->max;
	uint64_t u;
	int64_t t;

	switch (o->type) {
	case OPT_STR:
		*(const char **)o->dst = v;
		return 0;
	case OPT_INT:
		return parse_int(v, bounded ? o->min : 0, bounded ? o->max : INT64_MAX, o->dst);
	case OPT_SIZE:
		if (parse_size(v, &u) || (bounded && (u < (uint64_t)o->min || u > (uint64_t)o->max)))
			return -1;
		*(uint64_t *)o->dst = u;
		return 0;
	case OPT_TIME:
		if (parse_time(v, &t) || (bounded && (t < o->min || t > o->max)))
			return -1;
		*(int64_t *)o->dst = t;
		return 0;
	case OPT_REAL:
		return parse_real(v, o->rmin, o->rmax, o->dst);
	case OPT_LIST:
		return list_add(o->dst, v);
	default:
		return -1;
	}
}

static int bad_value(const struct opt_program *p, const struct opt *o, const char *where, const char *v,
	struct ds_err *err)
{
	static const char *const kinds[] = {
		[OPT_INT] = "a whole number", [OPT_SIZE] = "a size (such as 64K, 2G)",
		[OPT_TIME] = "a time (such as 10ms, 2s, 5m)",
		[OPT_REAL] = "a number", [OPT_STR] = "a text", [OPT_LIST] = "a text",
	};
	char range[80] = "";

	if ((o->type == OPT_INT || o->type == OPT_SIZE) && (o->min || o->max))
		snprintf(range, sizeof(range), " from %lld to %lld", (long long)o->min, (long long)o->max);
	else if (o->type == OPT_REAL)
		snprintf(range, sizeof(range), " from %g to %g", o->rmin, o->rmax);
	return err_set(err, DS_USAGE, "%s: '%s' is not %s%s; try '%s --help'", where, v, kinds[o->type], range,
		p->name);
}

static int set_default(const struct opt_program *p, const struct opt *o, struct ds_err *err)
{
	char name[64] = "DS_";
	const char *v;
	size_t n = 3;

	if (o->env) {
		for (const char *s = o->name; *s && n < sizeof(name) - 1; s++)
			name[n++] = *s == '-' ? '_' : (char)toupper((unsigned char)*s);
		name[n] = '\0';
		v = getenv(name);
		if (v && *v)
			return set_value(o, v) ? bad_value(p, o, name, v, err) : 0;
	}
	if (o->def && set_value(o, o->def))
		return err_set(err, DS_BUG, "default '%s' of --%s is bad", o->def, o->name);
	return 0;
}

/* ---- --help, --version, --options ---- */

static void print_help(const struct opt_program *p, const struct opt **all, size_t n)
{
	printf("usage: %s %s\n%s\n\n", p->name, p->usage, p->purpose);
	for (size_t i = 0; i < n; i++) {
		char left[64];
		const struct opt *o = all[i];

		if (o->letter)
			snprintf(left, sizeof(left), "-%c, --%s%s%s", o->letter, o->name, o->arg ? " " : "",
				o->arg ? o->arg : "");
		else
			snprintf(left, sizeof(left), "    --%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
		printf("  %-28s %s", left, o->help);
		if (o->def && *o->def)
			printf(" (default %s)", o->def);
		putchar('\n');
	}
	printf("\nexample:\n  %s\n", p->example);
}

static void print_version(const struct opt_program *p)
{
	printf("%s (dsutils) %s\n", p->name, DS_VERSION);
	if (opt_verbose <= 0)
		return;
	printf("compiler: gcc-compatible %s\n", __VERSION__);
	printf("frames: DSF1, minor %d\n", DS_FRAME_MINOR);
	printf("libraries: msgpack-c, zstd, xxhash, jansson, PCRE2\n");
	printf("not built in: CUDA, NCCL, RDMA\n");
}

static void print_options(const struct opt **all, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct opt *o = all[i];
		char letter[2] = { (char)o->letter, '\0' };

		printf("%s\t%s\t%s\t%s\t%s\n", o->name, letter, o->arg ? o->arg : "", o->def ? o->def : "", o->help);
	}
}

static int finish_stdout(struct ds_err *err)
{
	if (fflush(stdout) || ferror(stdout))
		return err_errno(err, DS_IO, "cannot write to standard output");
	exit(0);
}

static int informational(const struct opt_program *p, const struct opt **all, size_t n, struct ds_err *err)
{
	if (want_help)
		print_help(p, all, n);
	else if (want_version)
		print_version(p);
	else if (want_options)
		print_options(all, n);
	else
		return 0;
	return finish_stdout(err);
}

/* ---- parsing ---- */

static void make_getopt(const struct opt **all, size_t n, bool stop, char *letters, struct option *longs)
{
	*letters++ = stop ? '+' : '-';
	*letters++ = ':';
	for (size_t i = 0; i < n; i++) {
		const struct opt *o = all[i];
		bool arg = o->type != OPT_FLAG && o->type != OPT_COUNT;

		longs[i] = (struct option){ o->name, arg ? required_argument : no_argument, NULL, 256 + (int)i };
		if (o->letter) {
			*letters++ = (char)o->letter;
			if (arg)
				*letters++ = ':';
		}
	}
	*letters = '\0';
	longs[n] = (struct option){ 0 };
}

static const struct opt *find_letter(const struct opt **all, size_t n, int c)
{
	for (size_t i = 0; i < n; i++)
		if (all[i]->letter == c)
			return all[i];
	return NULL;
}

static int apply(const struct opt_program *p, const struct opt *o, const char *arg, struct ds_err *err)
{
	char where[64];

	if (o->type == OPT_FLAG) {
		*(bool *)o->dst = true;
	} else if (o->type == OPT_COUNT) {
		++*(int *)o->dst;
	} else if (set_value(o, arg)) {
		snprintf(where, sizeof(where), "--%s", o->name);
		return bad_value(p, o, where, arg, err);
	}
	return 0;
}

static int bad_option(const struct opt_program *p, int c, char **argv, struct ds_err *err)
{
	const char *seen = argv[optind - 1];
	char letter[3] = { '-', (char)optopt, '\0' };

	if (optopt > 0 && optopt < 256)
		seen = letter;
	if (c == ':')
		return err_set(err, DS_USAGE, "option '%s' needs an argument; try '%s --help'", seen, p->name);
	return err_set(err, DS_USAGE, "unknown option '%s'; try '%s --help'", seen, p->name);
}

static int parse_args(const struct opt_program *p, const struct opt **all, size_t n, int argc, char **argv, bool stop,
	char **operands, int *count, struct ds_err *err)
{
	char letters[2 * MAX_OPTS + 4];
	struct option longs[MAX_OPTS + 1];
	int c, rc;

	make_getopt(all, n, stop, letters, longs);
	optind = 0;
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		const struct opt *o;

		if (c == 1) { /* an operand among the options */
			operands[(*count)++] = optarg;
			continue;
		}
		if (c == '?' || c == ':')
			return bad_option(p, c, argv, err);
		o = c >= 256 ? all[c - 256] : find_letter(all, n, c);
		for (size_t i = 0; i < n; i++)
			given[i] |= all[i] == o;
		rc = apply(p, o, optarg, err);
		if (rc)
			return rc;
	}
	while (optind < argc)
		operands[(*count)++] = argv[optind++];
	return 0;
}

int opt_parse(const struct opt_program *p, int *argc, char ***argv, bool stop_at_operand, struct ds_err *err)
{
	const struct opt *all[MAX_OPTS];
	size_t n = gather(p, all);
	char **operands = mem_calloc((size_t)*argc + 1, sizeof(*operands));
	int count = 0, rc;

	std_fds_hold();
	if (!operands)
		return err_nomem(err, (size_t)*argc * sizeof(*operands), "arguments");
	for (size_t i = 0; i < n; i++) {
		rc = set_default(p, all[i], err);
		if (rc)
			goto out;
	}
	opterr = 0;
	rc = parse_args(p, all, n, *argc, *argv, stop_at_operand, operands, &count, err);
	if (rc)
		goto out;
	opt_verbose -= quiet;
	rc = informational(p, all, n, err);
	if (rc)
		goto out;
	/* getopt permutes nothing in '-' and '+' order, so the caller's array can take the operands back. */
	memcpy(*argv, operands, (size_t)count * sizeof(*operands));
	(*argv)[count] = NULL;
	*argc = count;
out:
	free(operands);
	return rc;
}

bool opt_listed(const char *list, char sep, const char *word)
{
	size_t n = strlen(word);

	for (const char *s = list; s; s = strchr(s, sep)) {
		s += *s == sep;
		if (!strncmp(s, word, n) && (s[n] == sep || !s[n]))
			return true;
	}
	return false;
}

bool opt_given(const struct opt_program *p, const char *name)
{
	for (size_t i = 0; i < MAX_OPTS && p->opts[i].name; i++)
		if (!strcmp(p->opts[i].name, name))
			return given[i];
	return false;
}

int opt_check_command(const struct opt_program *p, const char *command, struct ds_err *err)
{
	for (size_t i = 0; i < MAX_OPTS && p->opts[i].name; i++) {
		const struct opt *o = &p->opts[i];

		if (given[i] && o->commands && !opt_listed(o->commands, ' ', command))
			return err_set(err, DS_USAGE, "'%s' does not take --%s, which is for '%s'; try '%s --help'",
				command, o->name, o->commands, p->name);
	}
	return 0;
}

/*
 * One option table drives getopt_long, --help, completion and the test that manual and program agree.
 */
#ifndef DS_BASE_OPT_H
#define DS_BASE_OPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum opt_type {
	OPT_FLAG,  /* bool: set to true; "--no-NAME" is not made */
	OPT_COUNT, /* int: += 1 */
	OPT_STR,   /* const char * */
	OPT_INT,   /* int64_t, whole, within [min, max] */
	OPT_SIZE,  /* uint64_t bytes, suffixes K M G T (1024) */
	OPT_TIME,  /* int64_t nanoseconds, suffixes us ms s m h; a bare number is seconds */
	OPT_REAL,  /* double within [rmin, rmax], finite */
	OPT_LIST,  /* struct opt_list: may be given many times */
	OPT_HELP, OPT_VERSION,
};

struct opt_list { const char **v; size_t n; };

struct opt {
	const char *name;  /* long name */
	int letter;        /* or 0 */
	const char *arg;   /* NULL for flags: what --help calls the argument */
	const char *help;  /* one line */
	const char *def;   /* default as text, parsed like an argument; NULL: leave *dst as it is */
	enum opt_type type;
	void *dst;
	int64_t min, max;  /* OPT_INT, OPT_SIZE, OPT_TIME; both 0: any non-negative */
	double rmin, rmax; /* OPT_REAL */
	bool env;          /* a common option: DS_<NAME> gives its default */
	const char *commands; /* the sub-commands that take it, with blanks between them; NULL: all */
};

struct opt_program {
	const char *name;    /* ds-x */
	const char *usage;   /* what follows the name in the usage line */
	const char *purpose; /* one line */
	const char *example; /* last line(s) of --help */
	const struct opt *opts; /* ends with a NULL name; -h, -V, -v, -q are added by opt_parse */
};

extern int opt_verbose; /* -v less -q: 0 normal, < 0 quieter */

/* The first thing a program does: sees to descriptors 0 to 2 (base/std_fds.h).
 * Parses argv; operands are left in (*argv)[0 .. *argc), argv[0] dropped.  --help, --version and --options (the table,
 * one option a line: name, letter, argument, default, help, separated by tabs) print to stdout and exit 0 (74 where
 * stdout cannot be written).  Options end at "--" or the first operand when `stop_at_operand` (sub-commands), else
 * anywhere.  DS_USAGE on a bad option, with a hint "try 'ds-x --help'". */
int opt_parse(const struct opt_program *p, int *argc, char ***argv, bool stop_at_operand, struct ds_err *err);

/* DS_USAGE where an option was given that is of other sub-commands than this one. */
int opt_check_command(const struct opt_program *p, const char *command, struct ds_err *err);

/* The option of this long name was given on the command line. */
bool opt_given(const struct opt_program *p, const char *name);

/* word is one of a list with `sep` between them. */
bool opt_listed(const char *list, char sep, const char *word);

/* Whole-string parsers used by the above and elsewhere. */
int parse_int(const char *s, int64_t min, int64_t max, int64_t *out);
int parse_size(const char *s, uint64_t *out);
int parse_time(const char *s, int64_t *ns);
int parse_real(const char *s, double min, double max, double *out);

#endif

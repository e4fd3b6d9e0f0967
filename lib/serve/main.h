/* The frame of main() that stages share: options, messages, exit code. */
#ifndef DS_SERVE_MAIN_H
#define DS_SERVE_MAIN_H

#include "serve/stage.h"

/* Parses the options (one operand is the input file), sets logging up, calls run, reports its error.  Returns the exit
 * code; DS_SIGPIPE is silent. */
int stage_main(const struct opt_program *p, int argc, char **argv, struct stage_options *io,
	int (*run)(struct ds_err *err));
/* At most one operand is left: the input file, where nothing is listened for. */
int stage_operand(const struct opt_program *p, struct stage_options *io, int argc, char **argv, struct ds_err *err);
/* The same logging set-up and error report for programs with sub-commands. */
int stage_log(const struct opt_program *p, const struct stage_options *io, struct ds_err *err);
int stage_exit(const struct ds_err *err, int rc);

#endif

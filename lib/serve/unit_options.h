/*
 * What ds-prefill and ds-decode are told about the expert-parallel unit that they are a rank of.
 *
 * Only an address (--unit, DS_UNIT) makes a unit of processes: filters that a launcher starts side by side stay apart.
 */
#ifndef DS_SERVE_UNIT_OPTIONS_H
#define DS_SERVE_UNIT_OPTIONS_H

#include "ep/ranks.h"
#include "serve/rank.h"
#include "serve/stage.h"

struct unit_options {
	struct rank_options rank;
	int64_t redundant, dispatch_tokens;
	int64_t micro_batches;        /* 0: by the transport */
	const char *transport;        /* NULL: by the address */
	int64_t unit_timeout_ns, link_delay_ns;
	uint64_t link_rate;
	bool loads;
	const char *loads_to;
	int64_t load_interval_ns;
	/* set by unit_options_settle */
	struct rank me;               /* me.unit NULL: no unit */
	bool alone;                   /* --input none: no requests of its own */
	int64_t peer_timeout_ns;
};

#define UNIT_DEFAULTS { .rank = RANK_OPTIONS_NONE }

#define UNIT_OPTIONS(o) \
	{ .name = "unit", .arg = "ADDR", .help = "step together with the other ranks that meet at ADDR", \
	  .type = OPT_STR, .dst = &(o).rank.unit }, \
	{ .name = "rank", .arg = "N", .help = "which rank of the unit this is (else by the launcher's environment)", \
	  .type = OPT_INT, .dst = &(o).rank.rank, .max = EP_MAX_WORLD - 1 }, \
	{ .name = "world", .arg = "N", .help = "of how many", .type = OPT_INT, .dst = &(o).rank.world, .min = 1, \
	  .max = EP_MAX_WORLD }, \
	{ .name = "local-rank", .arg = "N", .help = "which of those on this machine: %l in names, as %r is the rank", \
	  .type = OPT_INT, .dst = &(o).rank.local_rank, .max = EP_MAX_WORLD - 1 }, \
	{ .name = "redundant", .arg = "N", .help = "copies of experts beyond one of each", .def = "0", \
	  .type = OPT_INT, .dst = &(o).redundant, .max = 1 << 16 }, \
	{ .name = "transport", .arg = "shm|tcp", .help = "how rows travel (shm where --unit is unix:PATH, else tcp)", \
	  .type = OPT_STR, .dst = &(o).transport }, \
	{ .name = "unit-timeout", .arg = "TIME", .help = "wait this long for the other ranks", .def = "60s", \
	  .type = OPT_TIME, .dst = &(o).unit_timeout_ns }, \
	{ .name = "micro-batches", .arg = "1|2", \
	  .help = "2: half of a step computes while rows of the other half travel", \
	  .type = OPT_INT, .dst = &(o).micro_batches, .min = 1, .max = 2 }, \
	{ .name = "dispatch-tokens", .arg = "N", .help = "most rows that a rank sends at once, the same on all ranks", \
	  .def = "256", .type = OPT_INT, .dst = &(o).dispatch_tokens, .min = 1, .max = 1 << 16 }, \
	{ .name = "link-delay", .arg = "TIME", .help = "imitate a network: rows arrive this much later", .def = "0", \
	  .type = OPT_TIME, .dst = &(o).link_delay_ns }, \
	{ .name = "link-rate", .arg = "SIZE", .help = "imitate a network of so many bytes a second (0: no limit)", \
	  .def = "0", .type = OPT_SIZE, .dst = &(o).link_rate }, \
	{ .name = "loads", .help = "write load frames, tokens of each expert, into the output", .type = OPT_FLAG, \
	  .dst = &(o).loads }, \
	{ .name = "loads-to", .arg = "FILE|ADDR", .help = "write load frames there", .type = OPT_STR, \
	  .dst = &(o).loads_to }, \
	{ .name = "load-interval", .arg = "TIME", .help = "one so often, while there are steps", .def = "10s", \
	  .type = OPT_TIME, .dst = &(o).load_interval_ns }

/* Finds out which rank this is and puts it into the names that it was given: io's and those in more[0..n), each with
 * the option that gave it.  DS_USAGE for options that say nothing without a unit or contradict each other, DS_CONFIG as
 * rank_find. */
struct unit_name { const char *option; const char **name; };
int unit_options_settle(struct unit_options *o, const struct opt_program *p, struct stage_options *io,
	const struct unit_name *more, size_t n, struct ds_err *err);

#endif

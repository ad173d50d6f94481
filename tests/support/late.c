/* A SPANK plugin behind gshare's: it lets slurmstepd set its device filter later than gshare has its answer. */
#include <slurm/spank.h>
#include <unistd.h>

SPANK_PLUGIN(late, 1);

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	if (spank_remote(sp))
		usleep(300000);
	return 0;
}

# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_gshare_global_optspecs
    string join \n socket= h/help V/version
end

function __fish_gshare_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_gshare_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_gshare_using_subcommand
    set -l cmd (__fish_gshare_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c gshare -n "__fish_gshare_needs_command" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_needs_command" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_needs_command" -s V -l version -d 'Print version'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "top" -d 'Open the screen, print it once, record it, or play a recording'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "claim" -d 'Claim a part of a GPU and run a command in it'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "run" -d 'Claim a part of a GPU and run a command in it'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "shell" -d 'Open a shell in a new claim'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "join" -d 'Run a command or a shell in an existing claim'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "env" -d 'Put the calling shell into a claim, and print the claim\'s environment for eval'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "ps" -d 'List claims with their actual use'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "queue" -d 'List waiting claims and what each of them waits for'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "status" -d 'Show GPUs and users: claimed and actual use'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "report" -d 'Report claimed and actual use over time, by user'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "smi" -d 'Show a claim in the style of nvidia-smi, as if its share were a whole GPU'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "release" -d 'Give claims back'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "adopt" -d 'Create a claim for a running process'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "why" -d 'Say why a claim waits, its earliest start, and which size would start now'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "log" -d 'Show the history of a claim, running or ended'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "suggest" -d 'Estimate what a command will need, from earlier runs'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "resize" -d 'Make a claim larger or smaller while its programs run'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "extend" -d 'Extend a claim\'s time limit (-t)'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "kernel" -d 'Jupyter kernels that claim a part of a GPU'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "keep" -d 'Postpone an announced move, offload or suspension of your claim, once'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "offload" -d 'Move a claim\'s GPU memory to host RAM while its programs keep running'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "restore" -d 'Bring an offloaded claim back onto a GPU'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "suspend" -d 'Offload a claim and freeze its processes'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "resume" -d 'Let a suspended claim run again'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "move" -d 'Move a claim to another GPU while its programs run'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "doctor" -d 'Show what gshare can enforce on this machine, and how to fix what it cannot'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "admin" -d 'For administrators: drain GPUs, end claims, read the audit log'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "config" -d 'Check and show the configuration'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "daemon" -d 'Run the service in the foreground'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "setup" -d 'Install gshare on this machine and start its service, or uninstall it'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "demo" -d 'See gshare at work on a simulated workstation; needs no GPU and no root'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "replay" -d 'Replay a list of claims under other policies: what would the waits have been?'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "completions" -d 'Print the completion script of a shell'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand top" -l screen -d 'First screen: overview, claims, queue, history, health, or its number' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l size -d 'Columns and rows with --once, from 20x5 to 500x200 [default: 120x40]' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l colours -d 'Colours' -r -f -a "auto\t'By the environment: `NO_COLOR`, `COLORTERM`, `TERM`'
mono\t'No colours'
16\t'The 16 named colours'
256\t'256 colours'
rgb\t'24-bit colours'"
complete -c gshare -n "__fish_gshare_using_subcommand top" -l theme -d 'Colours for a dark or a light background' -r -f -a "auto\t'As the terminal or `COLORFGBG` says, else dark'
dark\t'Dark'
light\t'Light'"
complete -c gshare -n "__fish_gshare_using_subcommand top" -l interval -d 'Minimum time between refreshes, for slow connections [default: 0.2s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l record -d 'Record to this file what the screens show; without a terminal, show nothing' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand top" -l for -d 'With --record or --plain: exit after this time' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l replay -d 'Play a recording: Space pauses, < and > change the speed, comma and full stop seek back and forward' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand top" -l speed -d 'Initial speed of the replay' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand top" -l once -d 'Print the screen once, as text, and exit; needs no terminal'
complete -c gshare -n "__fish_gshare_using_subcommand top" -l plain -d 'Print each change as a line of text, for screen readers and logs, until Ctrl-C; needs no terminal'
complete -c gshare -n "__fish_gshare_using_subcommand top" -l ascii -d 'Only ASCII characters'
complete -c gshare -n "__fish_gshare_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s g -l gpus -d 'GPUs: a part of one (0.5), a whole number (2), a part of each of several (2x0.5), or auto: what earlier runs of the command (or shell) needed' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l gpu-mem-limit -l gpu-memory-limit -d 'Most memory per GPU that the claim may use while others leave it free [default for new claims: the guaranteed memory; for notebooks: set by the service]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l limit -d 'Share of each GPU\'s SMs that the claim may use while others leave them idle: 0.8 or 80% [default for new claims: set by the service, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l gpu-ids -l index -d 'Only these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l model -d 'Only GPUs whose name contains this: h100, "RTX 4090"; several are separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l mode -d 'Only GPUs in this sharing mode: timeslice, mps, exclusive or mig' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s n -l name -d 'Name of the claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l project -d 'Project that the claim belongs to' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s t -l time -l duration -d 'End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l wait -d 'Wait at most this long, then exit 75; or forever [default: the service\'s, normally forever]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l movable -d 'Allow gshare to move the claim to other GPUs while it runs (the default)'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l no-movable -d 'Never move the claim from the GPUs where it starts'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l nonblock -l immediate -d 'Do not wait: exit 75 if the claim cannot start now'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l hold -d 'Keep the claim after the command has ended, until its release or the end of its time limit'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l requeue -d 'Allow gshare to stop the command to make room for other claims, and to restart it later'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l short -d 'Print only the id (without a command)'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l lazy -d 'Start the command at once, and claim at its first CUDA call, which waits for the GPU'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l no-library -d 'Run the command without gshare\'s library, for a program that the library breaks: it is counted and kept to the claim\'s GPUs, but not limited. Where limits are strict, it takes whole GPUs (-g 1)'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l dry-run -d 'Claim nothing. Print where the claim would start (exit 0); if it would wait, print the reason, the start time, and which other claims would make room and how (exit 75)'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l json -d 'Print the grant as JSON: to stdout without a command, else to stderr'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand run" -s g -l gpus -d 'GPUs: a part of one (0.5), a whole number (2), a part of each of several (2x0.5), or auto: what earlier runs of the command (or shell) needed' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l gpu-mem-limit -l gpu-memory-limit -d 'Most memory per GPU that the claim may use while others leave it free [default for new claims: the guaranteed memory; for notebooks: set by the service]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l limit -d 'Share of each GPU\'s SMs that the claim may use while others leave them idle: 0.8 or 80% [default for new claims: set by the service, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l gpu-ids -l index -d 'Only these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l model -d 'Only GPUs whose name contains this: h100, "RTX 4090"; several are separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l mode -d 'Only GPUs in this sharing mode: timeslice, mps, exclusive or mig' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -s n -l name -d 'Name of the claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l project -d 'Project that the claim belongs to' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand run" -s t -l time -l duration -d 'End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l wait -d 'Wait at most this long, then exit 75; or forever [default: the service\'s, normally forever]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand run" -l movable -d 'Allow gshare to move the claim to other GPUs while it runs (the default)'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l no-movable -d 'Never move the claim from the GPUs where it starts'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l nonblock -l immediate -d 'Do not wait: exit 75 if the claim cannot start now'
complete -c gshare -n "__fish_gshare_using_subcommand run" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l hold -d 'Keep the claim after the command has ended, until its release or the end of its time limit'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l requeue -d 'Allow gshare to stop the command to make room for other claims, and to restart it later'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l short -d 'Print only the id (without a command)'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l lazy -d 'Start the command at once, and claim at its first CUDA call, which waits for the GPU'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l no-library -d 'Run the command without gshare\'s library, for a program that the library breaks: it is counted and kept to the claim\'s GPUs, but not limited. Where limits are strict, it takes whole GPUs (-g 1)'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l dry-run -d 'Claim nothing. Print where the claim would start (exit 0); if it would wait, print the reason, the start time, and which other claims would make room and how (exit 75)'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l json -d 'Print the grant as JSON: to stdout without a command, else to stderr'
complete -c gshare -n "__fish_gshare_using_subcommand run" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s g -l gpus -d 'GPUs: a part of one (0.5), a whole number (2), a part of each of several (2x0.5), or auto: what earlier runs of the command (or shell) needed' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l gpu-mem-limit -l gpu-memory-limit -d 'Most memory per GPU that the claim may use while others leave it free [default for new claims: the guaranteed memory; for notebooks: set by the service]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l limit -d 'Share of each GPU\'s SMs that the claim may use while others leave them idle: 0.8 or 80% [default for new claims: set by the service, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l gpu-ids -l index -d 'Only these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l model -d 'Only GPUs whose name contains this: h100, "RTX 4090"; several are separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l mode -d 'Only GPUs in this sharing mode: timeslice, mps, exclusive or mig' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s n -l name -d 'Name of the claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l project -d 'Project that the claim belongs to' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s t -l time -l duration -d 'End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l wait -d 'Wait at most this long, then exit 75; or forever [default: the service\'s, normally forever]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l movable -d 'Allow gshare to move the claim to other GPUs while it runs (the default)'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l no-movable -d 'Never move the claim from the GPUs where it starts'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l nonblock -l immediate -d 'Do not wait: exit 75 if the claim cannot start now'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand join" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand join" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand join" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand env" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand env" -l unset -d 'Print the commands that remove the claim\'s environment from this shell'
complete -c gshare -n "__fish_gshare_using_subcommand env" -l print-only -d 'Only print: do not put the calling shell into the claim'
complete -c gshare -n "__fish_gshare_using_subcommand env" -l json -d 'Print a JSON object instead (implies --print-only)'
complete -c gshare -n "__fish_gshare_using_subcommand env" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand ps" -s u -l user -d 'Show only this user' -r
complete -c gshare -n "__fish_gshare_using_subcommand ps" -s w -l watch -d 'Repeat every SEC seconds' -r
complete -c gshare -n "__fish_gshare_using_subcommand ps" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand ps" -s a -l all -d 'Also waiting claims, and GPU processes without a claim'
complete -c gshare -n "__fish_gshare_using_subcommand ps" -l csv -d 'Print comma-separated values, memory in bytes'
complete -c gshare -n "__fish_gshare_using_subcommand ps" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand ps" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand queue" -s u -l user -d 'Show only this user' -r
complete -c gshare -n "__fish_gshare_using_subcommand queue" -s w -l watch -d 'Repeat every SEC seconds' -r
complete -c gshare -n "__fish_gshare_using_subcommand queue" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand queue" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand queue" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand status" -s u -l user -d 'Show only this user' -r
complete -c gshare -n "__fish_gshare_using_subcommand status" -s w -l watch -d 'Repeat every SEC seconds' -r
complete -c gshare -n "__fish_gshare_using_subcommand status" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand status" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand status" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand report" -l since -d 'Start of the period, this long ago: 5w, 3d, 12h, 30m' -r
complete -c gshare -n "__fish_gshare_using_subcommand report" -l until -d 'End of the period, this long ago [default: now]' -r
complete -c gshare -n "__fish_gshare_using_subcommand report" -s u -l user -d 'Only this user\'s' -r
complete -c gshare -n "__fish_gshare_using_subcommand report" -l html -d 'Write one HTML page without scripts, with aliases instead of user names' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand report" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand report" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand report" -l csv -d 'Print comma-separated values: a line per user, and one with the totals'
complete -c gshare -n "__fish_gshare_using_subcommand report" -l text -d 'Print at most 25 lines for a mail, with aliases instead of user names'
complete -c gshare -n "__fish_gshare_using_subcommand report" -l names -d 'Name users and their programs with --html or --text'
complete -c gshare -n "__fish_gshare_using_subcommand report" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand smi" -s u -l user -d 'Show only this user' -r
complete -c gshare -n "__fish_gshare_using_subcommand smi" -s w -l watch -d 'Repeat every SEC seconds' -r
complete -c gshare -n "__fish_gshare_using_subcommand smi" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand smi" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand smi" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand release" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand release" -s a -l all -d 'All of your claims, also waiting ones'
complete -c gshare -n "__fish_gshare_using_subcommand release" -s y -l yes -d 'Do not ask before ending the kernel of a notebook'
complete -c gshare -n "__fish_gshare_using_subcommand release" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand release" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s g -l gpus -d 'GPUs: a part of one (0.5) or a whole number (2) [default: what it has]' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l gpu-mem -l gpu-memory -d 'Memory per GPU, e.g. 8G (GiB) [default: what it has]' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l sm -d 'Share of each GPU\'s SMs, in percent' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s n -l name -d 'Name of the claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l project -d 'Project that the claim belongs to' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s t -l time -d 'End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s q -l quiet -d 'Print only the id'
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l json -d 'Print the grant as JSON'
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand why" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand why" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand why" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand log" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand log" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand log" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l class -d 'Class of work: without earlier runs, its default size is suggested' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l running -d 'Suggest sizes for your running claims'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l apply -d 'Resize the running claims to the suggested sizes'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l records -d 'Print the records of your runs as JSON lines, oldest first'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand resize" -s g -l gpus -d 'New fraction of each GPU of the claim, for memory and SMs: 0.5, or 2x0.5 for two GPUs' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l gpu-mem-limit -l gpu-memory-limit -d 'Most memory per GPU that the claim may use while others leave it free [default for new claims: the guaranteed memory; for notebooks: set by the service]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l limit -d 'Share of each GPU\'s SMs that the claim may use while others leave them idle: 0.8 or 80% [default for new claims: set by the service, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l wait -d 'Wait until there is room, at most this long [without TIME: as long as it takes]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand resize" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand resize" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand extend" -s t -l time -l duration -d 'Time to add: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand extend" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand extend" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand extend" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "install" -d 'Offer kernels with a part of a GPU in Jupyter'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "list" -d 'List the kernels that Jupyter offers here'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "remove" -d 'Remove kernels that gshare installed'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "exec" -d 'Start a kernel (installed kernels call this)'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -s g -l gpus -d 'GPUs: a part of one (0.5) or a whole number (2) [default: 0.25]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l gpu-mem-limit -l gpu-memory-limit -d 'Most memory per GPU that the claim may use while others leave it free [default for new claims: the guaranteed memory; for notebooks: set by the service]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l limit -d 'Share of each GPU\'s SMs that the claim may use while others leave them idle: 0.8 or 80% [default for new claims: set by the service, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l project -d 'Project that the claim belongs to' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l name -d 'Name of the new kernel [default: the old name with the size]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l display-name -d 'Name that Jupyter shows [default: the old one with the size]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l prefix -d 'Below this directory, in share/jupyter/kernels' -r -f -a "(__fish_complete_directories)"
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l all -d 'All kernels that are not gshare\'s'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l user -d 'For yourself, in ~/.local/share/jupyter (the default; root\'s default is /usr/local/share/jupyter, for all users)'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l sys-prefix -d 'Into the Python environment in use'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from list" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from remove" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from remove" -l all -d 'All kernels that gshare installed'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from remove" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -s g -l gpus -d 'GPUs: a part of one (0.5) or a whole number (2) [default: 0.25]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l gpu-mem-limit -l gpu-memory-limit -d 'Most memory per GPU that the claim may use while others leave it free [default for new claims: the guaranteed memory; for notebooks: set by the service]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l limit -d 'Share of each GPU\'s SMs that the claim may use while others leave them idle: 0.8 or 80% [default for new claims: set by the service, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l project -d 'Project that the claim belongs to' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l no-wait -d 'Do not wait for the GPU: the first CUDA call fails if the GPU is not free'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "install" -d 'Offer kernels with a part of a GPU in Jupyter'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the kernels that Jupyter offers here'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Remove kernels that gshare installed'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "exec" -d 'Start a kernel (installed kernels call this)'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand keep" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand keep" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand offload" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand offload" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand offload" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand offload" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand restore" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand restore" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand restore" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand restore" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand suspend" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand suspend" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand suspend" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand suspend" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand resume" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand resume" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand resume" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand resume" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand move" -l gpu -d 'Target GPU: index, UUID or start of a UUID; one for each GPU of the claim, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand move" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand move" -s q -l quiet -d 'Print errors only'
complete -c gshare -n "__fish_gshare_using_subcommand move" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand move" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand doctor" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand doctor" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "drain" -d 'Start no new claims on GPUs; running claims continue'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "undrain" -d 'Undo a drain, and clear old errors of a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "kill" -d 'End claims of any user, with all their processes'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "quota" -d 'Guarantee parts of the machine to users, groups and projects, and limit what they hold'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "mode" -d 'Change how claims share a GPU: in turns, side by side, or one at a time'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "release" -d 'Let go of GPUs, so that they can be reset or their driver settings changed'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "off" -d 'Suspend all enforcement (limits, reclaiming, refusals) until gshare admin on'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "on" -d 'Resume enforcement after gshare admin off; ends no program'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "stage" -d 'Show or set how much gshare does: 1 observe, 2 opt-in, 3 reclaim, 4 require'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "claim-for" -d 'For a user, create a claim on all programs in a cgroup that gshare does not own'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "mig" -d 'Divide a GPU into instances (MIG), or make it whole again'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "log" -d 'Show what administrators did'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -l reason -d 'Reason, shown to users who wait' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -l wait -d 'Return when no claim is left there, or exit 75 after this time [default: no limit]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from undrain" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from undrain" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from undrain" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -s u -l user -d 'All claims of this user: login name or uid' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l gpu -d 'All claims on this GPU: index or UUID; with --user, only that user\'s claims there' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l grace -d 'Time between SIGTERM and SIGKILL; the service checks about once a second [default: 10s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l reason -d 'Reason, shown to the owners' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -f -a "set" -d 'Set a quota, replacing an earlier or configured one'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -f -a "remove" -d 'Remove a quota that was set with this command; the configured one applies again'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -f -a "list" -d 'List the quotas in force (all users may do this)'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mode" -l wait -d 'Wait until no claim is left there, or exit 75 after this time with the mode unchanged [default: no limit]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mode" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mode" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mode" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -l for -d 'Take the GPUs back after this time [default: not until --take]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -l take -d 'Take released GPUs back'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -l for -d 'Switch on again after this time [default: only by gshare admin on]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -l config -d 'Configuration of the service, used if the service does not answer [default: /etc/gshare/gshare.toml]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from on" -l config -d 'Configuration of the service, used if the service does not answer [default: /etc/gshare/gshare.toml]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from on" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from on" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from on" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l gpus -d 'Only on these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l group -d 'At most this stage for the members of a group' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l plan -d 'Change the stage only if the dry run with this id would still print the same' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l dry-run -d 'Print whose runs of the last 7 days would be treated differently, and a plan id; change nothing'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -s u -l user -d 'Owner: login name or uid' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -s n -l name -d 'Name of the claim; the same name again gives the same claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l cgroup -d 'Cgroup of its programs: the directory, or the name in /proc/PID/cgroup' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -s g -l gpus -d 'GPUs: a part of one (0.5), a whole number (2), a part of each of several (2x0.5)' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l gpu-mem-limit -l gpu-memory-limit -d 'Most memory per GPU that the claim may use while others leave it free [default for new claims: the guaranteed memory; for notebooks: set by the service]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same fraction as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l limit -d 'Share of each GPU\'s SMs that the claim may use while others leave them idle: 0.8 or 80% [default for new claims: set by the service, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l gpu-ids -d 'Only these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l project -d 'Project that the claim belongs to' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l wait -d 'Wait until there is room, at most this long [without TIME: as long as it takes; without --wait: exit 75]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l json -d 'Print JSON, with the environment for its programs'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mig" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mig" -l dry-run -d 'Print what would be made and removed, and change nothing'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mig" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mig" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from log" -s n -l last -d 'How many entries, newest last' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from log" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from log" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from log" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "drain" -d 'Start no new claims on GPUs; running claims continue'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "undrain" -d 'Undo a drain, and clear old errors of a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "kill" -d 'End claims of any user, with all their processes'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "quota" -d 'Guarantee parts of the machine to users, groups and projects, and limit what they hold'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "mode" -d 'Change how claims share a GPU: in turns, side by side, or one at a time'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "release" -d 'Let go of GPUs, so that they can be reset or their driver settings changed'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "off" -d 'Suspend all enforcement (limits, reclaiming, refusals) until gshare admin on'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "on" -d 'Resume enforcement after gshare admin off; ends no program'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "stage" -d 'Show or set how much gshare does: 1 observe, 2 opt-in, 3 reclaim, 4 require'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "claim-for" -d 'For a user, create a claim on all programs in a cgroup that gshare does not own'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "mig" -d 'Divide a GPU into instances (MIG), or make it whole again'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "log" -d 'Show what administrators did'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -f -a "check" -d 'Report every mistake in a file; exit 78 if there is one'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -f -a "show" -d 'Print every key with its value in force'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -f -a "path" -d 'Print where files, sockets and state are'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from check" -l gpus -d 'Number of GPUs to check the quotas against [default: those of the running service]' -r
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from check" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from check" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from show" -l config -d 'File instead of the one in force' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from show" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from show" -l user -d 'Show the configuration of your own service, even as root'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from path" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from path" -l user -d 'Print the paths of your own service, even as root'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from path" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from path" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "check" -d 'Report every mistake in a file; exit 78 if there is one'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "show" -d 'Print every key with its value in force'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "path" -d 'Print where files, sockets and state are'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand daemon" -l config -d 'Configuration file [default: /etc/gshare/gshare.toml, or your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand daemon" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand daemon" -l user -d 'Your own service: your socket, your state, no privileges (the default unless root)'
complete -c gshare -n "__fish_gshare_using_subcommand daemon" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l prefix -d 'Where to install the program' -r -f -a "(__fish_complete_directories)"
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l root -d 'Only install files below DIR (a system image, or / on a machine without systemd); start nothing' -r -f -a "(__fish_complete_directories)"
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l dry-run -d 'Print what would be done, and do nothing'
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l undo -d 'Restore everything as it was before the first setup, except files that you edited since'
complete -c gshare -n "__fish_gshare_using_subcommand setup" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l gpus -d 'Models of the simulated GPUs with --shell: rtx4090, rtxa6000, a100-80gb, h100, h200, rtxpro6000; add MIG instances after a colon: a100-80gb:3g.40gb+2g.20gb' -r
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l for -d 'How long it runs [default: until you quit; 30s without the screen]' -r
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l size -d 'Size of the screen in columns and rows, e.g. 120x40 [default: the terminal\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l headless -d 'Run without the screen'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l shell -d 'Open a shell on the simulated workstation instead, to try commands and programs of your own'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l json -d 'Print the final state as one JSON object (with --headless)'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l screens -d 'Print all screens of the final state, as text and as SVG (with --headless)'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l policy -d 'Policy (see below); repeat to compare several [default: gshare, gshare-no-offload and fgd]' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l gpus -d 'GPUs of the machine' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l mem -d 'Memory of each GPU; sets how long moves and offloads take' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l load -d 'Scale the times between requests so that the load is this fraction of the machine [default: as listed]' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l claims -d 'Only the first N claims' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand replay" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand completions" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the system service\'s, else your own service\'s]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand completions" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "top" -d 'Open the screen, print it once, record it, or play a recording'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "claim" -d 'Claim a part of a GPU and run a command in it'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "shell" -d 'Open a shell in a new claim'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "join" -d 'Run a command or a shell in an existing claim'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "env" -d 'Put the calling shell into a claim, and print the claim\'s environment for eval'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "ps" -d 'List claims with their actual use'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "queue" -d 'List waiting claims and what each of them waits for'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "status" -d 'Show GPUs and users: claimed and actual use'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "report" -d 'Report claimed and actual use over time, by user'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "smi" -d 'Show a claim in the style of nvidia-smi, as if its share were a whole GPU'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "release" -d 'Give claims back'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "adopt" -d 'Create a claim for a running process'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "why" -d 'Say why a claim waits, its earliest start, and which size would start now'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "log" -d 'Show the history of a claim, running or ended'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "suggest" -d 'Estimate what a command will need, from earlier runs'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "resize" -d 'Make a claim larger or smaller while its programs run'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "extend" -d 'Extend a claim\'s time limit (-t)'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "kernel" -d 'Jupyter kernels that claim a part of a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "keep" -d 'Postpone an announced move, offload or suspension of your claim, once'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "offload" -d 'Move a claim\'s GPU memory to host RAM while its programs keep running'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "restore" -d 'Bring an offloaded claim back onto a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "suspend" -d 'Offload a claim and freeze its processes'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "resume" -d 'Let a suspended claim run again'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "move" -d 'Move a claim to another GPU while its programs run'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "doctor" -d 'Show what gshare can enforce on this machine, and how to fix what it cannot'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "admin" -d 'For administrators: drain GPUs, end claims, read the audit log'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "config" -d 'Check and show the configuration'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "daemon" -d 'Run the service in the foreground'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "setup" -d 'Install gshare on this machine and start its service, or uninstall it'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "demo" -d 'See gshare at work on a simulated workstation; needs no GPU and no root'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "replay" -d 'Replay a list of claims under other policies: what would the waits have been?'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "completions" -d 'Print the completion script of a shell'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from kernel" -f -a "install" -d 'Offer kernels with a part of a GPU in Jupyter'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from kernel" -f -a "list" -d 'List the kernels that Jupyter offers here'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from kernel" -f -a "remove" -d 'Remove kernels that gshare installed'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from kernel" -f -a "exec" -d 'Start a kernel (installed kernels call this)'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "drain" -d 'Start no new claims on GPUs; running claims continue'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "undrain" -d 'Undo a drain, and clear old errors of a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "kill" -d 'End claims of any user, with all their processes'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "quota" -d 'Guarantee parts of the machine to users, groups and projects, and limit what they hold'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "mode" -d 'Change how claims share a GPU: in turns, side by side, or one at a time'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "release" -d 'Let go of GPUs, so that they can be reset or their driver settings changed'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "off" -d 'Suspend all enforcement (limits, reclaiming, refusals) until gshare admin on'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "on" -d 'Resume enforcement after gshare admin off; ends no program'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "stage" -d 'Show or set how much gshare does: 1 observe, 2 opt-in, 3 reclaim, 4 require'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "claim-for" -d 'For a user, create a claim on all programs in a cgroup that gshare does not own'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "mig" -d 'Divide a GPU into instances (MIG), or make it whole again'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "log" -d 'Show what administrators did'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "check" -d 'Report every mistake in a file; exit 78 if there is one'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "show" -d 'Print every key with its value in force'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "path" -d 'Print where files, sockets and state are'

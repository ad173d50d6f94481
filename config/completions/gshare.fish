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

complete -c gshare -n "__fish_gshare_needs_command" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_needs_command" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_needs_command" -s V -l version -d 'Print version'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "top" -d 'Open the screen; or print it once, record it, show a recording'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "claim" -d 'Claim a part of a GPU and run a command in it'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "run" -d 'Claim a part of a GPU and run a command in it'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "shell" -d 'Open a shell in a new claim'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "join" -d 'Run a command, or a shell, in a claim that exists'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "env" -d 'Print a claim\'s environment for eval, and put the calling shell into the claim'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "ps" -d 'List claims, beside what they really use'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "queue" -d 'List waiting claims, with what each waits for'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "status" -d 'Show GPUs and users: what is claimed beside what is used'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "report" -d 'Report what was claimed and what was used over time, by user'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "smi" -d 'Show a claim\'s share as nvidia-smi would show GPUs of its own'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "release" -d 'Give claims back'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "adopt" -d 'Make a running process a claim'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "why" -d 'Say why a claim waits, what would start now, and when it starts at the earliest'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "log" -d 'Show what happened to a claim, also to one that has ended'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "suggest" -d 'Say what a command will need, from the runs before it'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "resize" -d 'Make a claim larger or smaller while its programs run'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "extend" -d 'Extend a claim\'s time limit (-t)'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "kernel" -d 'Jupyter kernels that claim a part of a GPU'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "keep" -d 'Postpone an announced action on your claim, once'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "offload" -d 'Free a claim\'s GPU memory while its programs live on'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "restore" -d 'Bring an offloaded claim back onto a GPU'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "suspend" -d 'Offload a claim and stop its processes'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "resume" -d 'Let a suspended claim run again'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "move" -d 'Move a claim to another GPU while its programs run'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "doctor" -d 'Show what this machine and this service can enforce, and how to mend the rest'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "admin" -d 'For administrators: drain GPUs, end claims, read the audit log'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "config" -d 'Check and show the configuration'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "daemon" -d 'Run the service in the foreground'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "setup" -d 'Install gshare on this machine and start its service; or take it away again'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "demo" -d 'See gshare at work on a simulated workstation; needs no GPU and no root'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "replay" -d 'Replay a list of claims under other policies: what would the waits have been?'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "completions" -d 'Print the completion script of a shell'
complete -c gshare -n "__fish_gshare_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand top" -l screen -d 'First screen: overview, claims, queue, history, health, or its number' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l size -d 'Columns and rows with --once, from 20x5 to 500x200 [default: 120x40]' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l colours -d 'Colours' -r -f -a "auto\t'As many as the environment says: `NO_COLOR`, `COLORTERM`, `TERM`'
mono\t'None'
16\t'The 16 named ones'
256\t'256'
rgb\t'All'"
complete -c gshare -n "__fish_gshare_using_subcommand top" -l theme -d 'Colours for a dark or a light background' -r -f -a "auto\t'As the terminal or `COLORFGBG` says, else dark'
dark\t'Dark'
light\t'Light'"
complete -c gshare -n "__fish_gshare_using_subcommand top" -l interval -d 'Shortest time between two looks, for slow lines [default: 0.2s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l record -d 'Write all that is shown into this file; without a terminal, nothing is shown' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand top" -l for -d 'Record or print changes for this time, then exit' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l replay -d 'Show a recording instead: Space stops it, < and > change its speed, comma and full stop go about' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand top" -l speed -d 'Speed of the replay at its start' -r
complete -c gshare -n "__fish_gshare_using_subcommand top" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand top" -l once -d 'Print the screen once, as text, and exit; needs no terminal'
complete -c gshare -n "__fish_gshare_using_subcommand top" -l plain -d 'Print what changes as lines, for screen readers and logs, until Ctrl-C; needs no terminal'
complete -c gshare -n "__fish_gshare_using_subcommand top" -l ascii -d 'Only ASCII characters'
complete -c gshare -n "__fish_gshare_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s g -l gpus -d 'GPUs: a part of one (0.5), a whole number (2), a part of each of several (2x0.5), or auto: what earlier runs of the command needed' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l gpu-mem-limit -l gpu-memory-limit -d 'Upper limit on memory per GPU, while it is free [default of a new claim: what is guaranteed; of a notebook: the service\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l limit -d 'Upper limit on SMs, while they are idle: 0.8 or 80% [default of a new claim: the service\'s, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l gpu-ids -l index -d 'Only these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l model -d 'Only GPUs whose name contains this: h100, "RTX 4090"; several are separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l mode -d 'Only GPUs that are shared so: timeslice, mps, exclusive or mig' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s n -l name -d 'Name of the claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l project -d 'Project that the claim counts for' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s t -l time -l duration -d 'End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l wait -d 'Wait at most this long, then exit 75; or forever [default: the service\'s, normally forever]' -r
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l movable -d 'It may be moved to other GPUs while it runs, which is so unless said otherwise'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l no-movable -d 'It stays on the GPUs where it starts: nothing makes room by moving it'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l nonblock -l immediate -d 'Do not wait: exit 75 when it is not available now'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l hold -d 'Keep the claim after the command has ended, until it is released or its time is over'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l requeue -d 'Allow gshare to end the command for other claims and to restart it later'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l short -d 'Print only the id (without a command)'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l lazy -d 'Start the command at once, and claim at its first CUDA call, which waits for the GPU'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l dry-run -d 'Claim nothing: say where it would start (exit 0), or why it would wait, when it would start, and what would be done to others for it (exit 75)'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -l json -d 'Print the grant as JSON: to stdout without a command, else to stderr'
complete -c gshare -n "__fish_gshare_using_subcommand claim" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand run" -s g -l gpus -d 'GPUs: a part of one (0.5), a whole number (2), a part of each of several (2x0.5), or auto: what earlier runs of the command needed' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l gpu-mem-limit -l gpu-memory-limit -d 'Upper limit on memory per GPU, while it is free [default of a new claim: what is guaranteed; of a notebook: the service\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l limit -d 'Upper limit on SMs, while they are idle: 0.8 or 80% [default of a new claim: the service\'s, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l gpu-ids -l index -d 'Only these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l model -d 'Only GPUs whose name contains this: h100, "RTX 4090"; several are separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l mode -d 'Only GPUs that are shared so: timeslice, mps, exclusive or mig' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -s n -l name -d 'Name of the claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l project -d 'Project that the claim counts for' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand run" -s t -l time -l duration -d 'End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l wait -d 'Wait at most this long, then exit 75; or forever [default: the service\'s, normally forever]' -r
complete -c gshare -n "__fish_gshare_using_subcommand run" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand run" -l movable -d 'It may be moved to other GPUs while it runs, which is so unless said otherwise'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l no-movable -d 'It stays on the GPUs where it starts: nothing makes room by moving it'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l nonblock -l immediate -d 'Do not wait: exit 75 when it is not available now'
complete -c gshare -n "__fish_gshare_using_subcommand run" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l hold -d 'Keep the claim after the command has ended, until it is released or its time is over'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l requeue -d 'Allow gshare to end the command for other claims and to restart it later'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l short -d 'Print only the id (without a command)'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l lazy -d 'Start the command at once, and claim at its first CUDA call, which waits for the GPU'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l dry-run -d 'Claim nothing: say where it would start (exit 0), or why it would wait, when it would start, and what would be done to others for it (exit 75)'
complete -c gshare -n "__fish_gshare_using_subcommand run" -l json -d 'Print the grant as JSON: to stdout without a command, else to stderr'
complete -c gshare -n "__fish_gshare_using_subcommand run" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s g -l gpus -d 'GPUs: a part of one (0.5), a whole number (2), a part of each of several (2x0.5), or auto: what earlier runs of the command needed' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l gpu-mem-limit -l gpu-memory-limit -d 'Upper limit on memory per GPU, while it is free [default of a new claim: what is guaranteed; of a notebook: the service\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l limit -d 'Upper limit on SMs, while they are idle: 0.8 or 80% [default of a new claim: the service\'s, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l gpu-ids -l index -d 'Only these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l model -d 'Only GPUs whose name contains this: h100, "RTX 4090"; several are separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l mode -d 'Only GPUs that are shared so: timeslice, mps, exclusive or mig' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s n -l name -d 'Name of the claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l project -d 'Project that the claim counts for' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s t -l time -l duration -d 'End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l wait -d 'Wait at most this long, then exit 75; or forever [default: the service\'s, normally forever]' -r
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l movable -d 'It may be moved to other GPUs while it runs, which is so unless said otherwise'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l no-movable -d 'It stays on the GPUs where it starts: nothing makes room by moving it'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -l nonblock -l immediate -d 'Do not wait: exit 75 when it is not available now'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand shell" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand join" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand join" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand join" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand env" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand env" -l unset -d 'Print what takes the claim\'s environment out of this shell again'
complete -c gshare -n "__fish_gshare_using_subcommand env" -l print-only -d 'Only print: leave the calling shell where it is'
complete -c gshare -n "__fish_gshare_using_subcommand env" -l json -d 'Print a JSON object instead (implies --print-only)'
complete -c gshare -n "__fish_gshare_using_subcommand env" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand ps" -s u -l user -d 'Only this user\'s' -r
complete -c gshare -n "__fish_gshare_using_subcommand ps" -s w -l watch -d 'Repeat every SEC seconds' -r
complete -c gshare -n "__fish_gshare_using_subcommand ps" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand ps" -s a -l all -d 'Also waiting claims, and GPU processes without a claim'
complete -c gshare -n "__fish_gshare_using_subcommand ps" -l csv -d 'Print comma-separated values, memory in bytes'
complete -c gshare -n "__fish_gshare_using_subcommand ps" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand ps" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand queue" -s u -l user -d 'Only this user\'s' -r
complete -c gshare -n "__fish_gshare_using_subcommand queue" -s w -l watch -d 'Repeat every SEC seconds' -r
complete -c gshare -n "__fish_gshare_using_subcommand queue" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand queue" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand queue" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand status" -s u -l user -d 'Only this user\'s' -r
complete -c gshare -n "__fish_gshare_using_subcommand status" -s w -l watch -d 'Repeat every SEC seconds' -r
complete -c gshare -n "__fish_gshare_using_subcommand status" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand status" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand status" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand report" -l since -d 'How far back: 5w, 3d, 12h, 30m' -r
complete -c gshare -n "__fish_gshare_using_subcommand report" -l until -d 'Ends this long ago [default: now]' -r
complete -c gshare -n "__fish_gshare_using_subcommand report" -s u -l user -d 'Only this user\'s' -r
complete -c gshare -n "__fish_gshare_using_subcommand report" -l html -d 'Write one page for a browser, without scripts; users by alias' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand report" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand report" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand report" -l csv -d 'Print comma-separated values: a line per user, and one for all'
complete -c gshare -n "__fish_gshare_using_subcommand report" -l text -d 'Print at most 25 lines for a mail; users by alias'
complete -c gshare -n "__fish_gshare_using_subcommand report" -l names -d 'Name users and their programs with --html or --text'
complete -c gshare -n "__fish_gshare_using_subcommand report" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand smi" -s u -l user -d 'Only this user\'s' -r
complete -c gshare -n "__fish_gshare_using_subcommand smi" -s w -l watch -d 'Repeat every SEC seconds' -r
complete -c gshare -n "__fish_gshare_using_subcommand smi" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand smi" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand smi" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand release" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand release" -s a -l all -d 'All of your own, waiting ones included'
complete -c gshare -n "__fish_gshare_using_subcommand release" -s y -l yes -d 'Do not ask before the kernel of a notebook is ended'
complete -c gshare -n "__fish_gshare_using_subcommand release" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand release" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s g -l gpus -d 'GPUs: a part of one (0.5) or a whole number (2) [default: what it has]' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l gpu-mem -l gpu-memory -d 'Memory per GPU, e.g. 8G (GiB) [default: what it has]' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l sm -d 'Share of each GPU\'s SMs, in percent' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s n -l name -d 'Name of the claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l project -d 'Project that the claim counts for' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s t -l time -d 'End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s q -l quiet -d 'Print only the id'
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -l json -d 'Print the grant as JSON'
complete -c gshare -n "__fish_gshare_using_subcommand adopt" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand why" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand why" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand why" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand log" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand log" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand log" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l class -d 'Class of work, whose default size is the guess where no run is known' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l running -d 'Of your claims that run'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l apply -d 'Give them these sizes'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l records -d 'Print the records of your runs, a line of JSON each, oldest first'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand suggest" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand resize" -s g -l gpus -d 'Part of the GPU, memory and SMs alike: 0.5; of each of its GPUs: 2x0.5' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l gpu-mem-limit -l gpu-memory-limit -d 'Upper limit on memory per GPU, while it is free [default of a new claim: what is guaranteed; of a notebook: the service\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l limit -d 'Upper limit on SMs, while they are idle: 0.8 or 80% [default of a new claim: the service\'s, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l wait -d 'Wait until there is room, at most this long [without TIME: as long as it takes]' -r
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand resize" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand resize" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand resize" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand extend" -s t -l time -l duration -d 'Time that is added: 90m, 2h, 1-12:00:00; a bare number is minutes' -r
complete -c gshare -n "__fish_gshare_using_subcommand extend" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand extend" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand extend" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "install" -d 'Offer kernels with a part of a GPU in Jupyter'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "list" -d 'List the kernels that Jupyter offers here'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "remove" -d 'Take away kernels that gshare has made'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "exec" -d 'Start a kernel; what installed kernels run'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and not __fish_seen_subcommand_from install list remove exec help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -s g -l gpus -d 'GPUs: a part of one (0.5) or a whole number (2) [default: 0.25]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l gpu-mem-limit -l gpu-memory-limit -d 'Upper limit on memory per GPU, while it is free [default of a new claim: what is guaranteed; of a notebook: the service\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l limit -d 'Upper limit on SMs, while they are idle: 0.8 or 80% [default of a new claim: the service\'s, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l project -d 'Project that the claim counts for' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l name -d 'Name of the new kernel [default: that of the old one, with the size]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l display-name -d 'What Jupyter shows [default: as the old one, with the size]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l prefix -d 'Below this directory, in share/jupyter/kernels' -r -f -a "(__fish_complete_directories)"
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l all -d 'All kernels that are not gshare\'s'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l user -d 'For yourself, in ~/.local/share/jupyter [default, but for root: /usr/local/share/jupyter, for everybody]'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l sys-prefix -d 'Into the Python environment in use'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from install" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from list" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from remove" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from remove" -l all -d 'All that gshare has made'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from remove" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -s g -l gpus -d 'GPUs: a part of one (0.5) or a whole number (2) [default: 0.25]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l gpu-mem-limit -l gpu-memory-limit -d 'Upper limit on memory per GPU, while it is free [default of a new claim: what is guaranteed; of a notebook: the service\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l limit -d 'Upper limit on SMs, while they are idle: 0.8 or 80% [default of a new claim: the service\'s, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l project -d 'Project that the claim counts for' -r
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -l no-wait -d 'Do not wait for the GPU: the first CUDA call fails when it is not free'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from exec" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "install" -d 'Offer kernels with a part of a GPU in Jupyter'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the kernels that Jupyter offers here'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Take away kernels that gshare has made'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "exec" -d 'Start a kernel; what installed kernels run'
complete -c gshare -n "__fish_gshare_using_subcommand kernel; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand keep" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand keep" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand offload" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand offload" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand offload" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand offload" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand restore" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand restore" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand restore" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand restore" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand suspend" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand suspend" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand suspend" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand suspend" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand resume" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand resume" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand resume" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand resume" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand move" -l gpu -d 'GPU to move to: index, UUID or the start of one; one for each that the claim has' -r
complete -c gshare -n "__fish_gshare_using_subcommand move" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand move" -s q -l quiet -d 'Say nothing but errors'
complete -c gshare -n "__fish_gshare_using_subcommand move" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand move" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand doctor" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand doctor" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "drain" -d 'Start no new claims on GPUs; what runs there runs on'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "undrain" -d 'Undo a drain, and clear old errors of a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "kill" -d 'End claims with all their processes, whoever they belong to'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "quota" -d 'Guarantee parts of the machine to users, groups and projects, and bound what they hold'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "mode" -d 'Change how claims share a GPU: in turns, side by side, one at a time'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "release" -d 'Close GPUs, so that they can be reset or their driver\'s settings changed'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "off" -d 'Stop acting: no limit, no taking back, no refusal, until gshare admin on'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "on" -d 'Act again after gshare admin off; nothing is ended by that'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "stage" -d 'Show or set how much gshare does: 1 observe, 2 opt-in, 3 reclaim, 4 require'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "claim-for" -d 'Claim for a user, for all programs below a cgroup that gshare does not own'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "mig" -d 'Divide a GPU into instances (MIG), or make it whole again'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "log" -d 'Show what administrators did'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and not __fish_seen_subcommand_from drain undrain kill quota mode release off on stage claim-for mig log help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -l reason -d 'Why, for those who wait' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -l wait -d 'Return when no claim is left there, or exit 75 after this time [default: no end]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from drain" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from undrain" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from undrain" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from undrain" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -s u -l user -d 'All claims of this user: login name or uid' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l gpu -d 'All claims on this GPU: index or UUID (with --user: those of the user there)' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l grace -d 'Time between SIGTERM and SIGKILL, looked at once a tick [default: 10s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l reason -d 'Why, for the owners' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from kill" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -f -a "set" -d 'Set a quota, in the place of what was set or configured'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -f -a "remove" -d 'Remove a quota that was set; what is configured holds again'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -f -a "list" -d 'List the quotas in force; everybody may'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from quota" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mode" -l wait -d 'Wait until no claim is left there, or exit 75 after this time and leave the mode [default: no end]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mode" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mode" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mode" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -l for -d 'Take them back after this time [default: when told to]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -l take -d 'Take released GPUs back'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from release" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -l for -d 'Be on again after this time [default: when told to]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -l config -d 'The service\'s configuration, for when the service does not answer [default: /etc/gshare/gshare.toml]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from off" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from on" -l config -d 'The service\'s configuration, for when the service does not answer [default: /etc/gshare/gshare.toml]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from on" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from on" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from on" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l gpus -d 'Only on these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l group -d 'At most this stage for the members of a group' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l plan -d 'Change it only if the dry run with this id would say the same now' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l dry-run -d 'Print whose runs of the last 7 days would be treated differently, and a plan id; change nothing'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from stage" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -s u -l user -d 'Owner: login name or uid' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -s n -l name -d 'Name of the claim; the same name again gives the same claim' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l cgroup -d 'Cgroup of its programs: the directory, or the name in /proc/PID/cgroup' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -s g -l gpus -d 'GPUs: a part of one (0.5), a whole number (2), a part of each of several (2x0.5)' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l gpu-mem -l gpu-memory -d 'Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l gpu-mem-limit -l gpu-memory-limit -d 'Upper limit on memory per GPU, while it is free [default of a new claim: what is guaranteed; of a notebook: the service\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l sm -d 'Guaranteed share of each GPU\'s SMs, in percent [default: the same part as -g]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l limit -d 'Upper limit on SMs, while they are idle: 0.8 or 80% [default of a new claim: the service\'s, normally all]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l gpu-ids -d 'Only these GPUs: indices or UUIDs, separated by commas' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l project -d 'Project that the claim counts for' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l class -d 'Class of work: interactive, batch or inference' -r -f -a "interactive\t''
batch\t''
inference\t''"
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l wait -d 'Wait until there is room, at most this long [without TIME: as long as it takes; without --wait: exit 75]' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -l json -d 'Print JSON, with the environment for its programs'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from claim-for" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mig" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mig" -l dry-run -d 'Print what would be made and removed, and change nothing'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mig" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from mig" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from log" -s n -l last -d 'How many entries, newest last' -r
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from log" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from log" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from log" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "drain" -d 'Start no new claims on GPUs; what runs there runs on'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "undrain" -d 'Undo a drain, and clear old errors of a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "kill" -d 'End claims with all their processes, whoever they belong to'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "quota" -d 'Guarantee parts of the machine to users, groups and projects, and bound what they hold'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "mode" -d 'Change how claims share a GPU: in turns, side by side, one at a time'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "release" -d 'Close GPUs, so that they can be reset or their driver\'s settings changed'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "off" -d 'Stop acting: no limit, no taking back, no refusal, until gshare admin on'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "on" -d 'Act again after gshare admin off; nothing is ended by that'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "stage" -d 'Show or set how much gshare does: 1 observe, 2 opt-in, 3 reclaim, 4 require'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "claim-for" -d 'Claim for a user, for all programs below a cgroup that gshare does not own'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "mig" -d 'Divide a GPU into instances (MIG), or make it whole again'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "log" -d 'Show what administrators did'
complete -c gshare -n "__fish_gshare_using_subcommand admin; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -f -a "check" -d 'Report every mistake in a file; exit 78 if there is one'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -f -a "show" -d 'Print every key with the value in force'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -f -a "path" -d 'Print where files, sockets and state are'
complete -c gshare -n "__fish_gshare_using_subcommand config; and not __fish_seen_subcommand_from check show path help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from check" -l gpus -d 'GPUs on which the quotas are to be had [default: those of the service that answers]' -r
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from check" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from check" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from show" -l config -d 'File instead of the one in force' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from show" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from show" -l user -d 'Of your own service, also as root'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from path" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from path" -l user -d 'Of your own service, also as root'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from path" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from path" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "check" -d 'Report every mistake in a file; exit 78 if there is one'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "show" -d 'Print every key with the value in force'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "path" -d 'Print where files, sockets and state are'
complete -c gshare -n "__fish_gshare_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand daemon" -l config -d 'Configuration file [default: /etc/gshare/gshare.toml, or your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand daemon" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand daemon" -l user -d 'Your own service: your socket, your state, no privileges (the default unless root)'
complete -c gshare -n "__fish_gshare_using_subcommand daemon" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l prefix -d 'Where the program goes' -r -f -a "(__fish_complete_directories)"
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l root -d 'Install the files only, below DIR (an image of a machine, or / without systemd); starts nothing' -r -f -a "(__fish_complete_directories)"
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l dry-run -d 'Print what would be done, and do nothing'
complete -c gshare -n "__fish_gshare_using_subcommand setup" -l undo -d 'Put everything back as it was before the first setup'
complete -c gshare -n "__fish_gshare_using_subcommand setup" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l gpus -d 'Models of the simulated GPUs with --shell: rtx4090, rtxa6000, a100-80gb, h100, h200, rtxpro6000; one that is divided by MIG has its instances behind a colon: a100-80gb:3g.40gb+2g.20gb' -r
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l for -d 'How long it runs [default: until you quit; 30s without the screen]' -r
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l size -d 'Size of the screen in columns and rows, e.g. 120x40 [default: the terminal\'s]' -r
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l headless -d 'Without the screen'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l shell -d 'Open a shell on the simulated workstation instead, to try commands and programs of your own'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l json -d 'Print the final state as one JSON object (with --headless)'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -l screens -d 'Print all screens of the final state, as text and as SVG (with --headless)'
complete -c gshare -n "__fish_gshare_using_subcommand demo" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l policy -d 'Policy (below), more than once to compare [default: gshare, gshare-no-offload and fgd]' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l gpus -d 'GPUs of the machine' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l mem -d 'Memory of each GPU, which is what moves cost' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l load -d 'Stretch the times between requests until this part of the machine is asked for [default: as listed]' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l claims -d 'Only the first N claims' -r
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand replay" -l json -d 'Print JSON'
complete -c gshare -n "__fish_gshare_using_subcommand replay" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand completions" -l socket -d 'Socket of the service [default: $GSHARE_SOCKET, else the machine\'s, else your own]' -r -F
complete -c gshare -n "__fish_gshare_using_subcommand completions" -s h -l help -d 'Print help'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "top" -d 'Open the screen; or print it once, record it, show a recording'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "claim" -d 'Claim a part of a GPU and run a command in it'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "shell" -d 'Open a shell in a new claim'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "join" -d 'Run a command, or a shell, in a claim that exists'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "env" -d 'Print a claim\'s environment for eval, and put the calling shell into the claim'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "ps" -d 'List claims, beside what they really use'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "queue" -d 'List waiting claims, with what each waits for'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "status" -d 'Show GPUs and users: what is claimed beside what is used'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "report" -d 'Report what was claimed and what was used over time, by user'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "smi" -d 'Show a claim\'s share as nvidia-smi would show GPUs of its own'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "release" -d 'Give claims back'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "adopt" -d 'Make a running process a claim'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "why" -d 'Say why a claim waits, what would start now, and when it starts at the earliest'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "log" -d 'Show what happened to a claim, also to one that has ended'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "suggest" -d 'Say what a command will need, from the runs before it'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "resize" -d 'Make a claim larger or smaller while its programs run'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "extend" -d 'Extend a claim\'s time limit (-t)'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "kernel" -d 'Jupyter kernels that claim a part of a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "keep" -d 'Postpone an announced action on your claim, once'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "offload" -d 'Free a claim\'s GPU memory while its programs live on'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "restore" -d 'Bring an offloaded claim back onto a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "suspend" -d 'Offload a claim and stop its processes'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "resume" -d 'Let a suspended claim run again'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "move" -d 'Move a claim to another GPU while its programs run'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "doctor" -d 'Show what this machine and this service can enforce, and how to mend the rest'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "admin" -d 'For administrators: drain GPUs, end claims, read the audit log'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "config" -d 'Check and show the configuration'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "daemon" -d 'Run the service in the foreground'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "setup" -d 'Install gshare on this machine and start its service; or take it away again'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "demo" -d 'See gshare at work on a simulated workstation; needs no GPU and no root'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "replay" -d 'Replay a list of claims under other policies: what would the waits have been?'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "completions" -d 'Print the completion script of a shell'
complete -c gshare -n "__fish_gshare_using_subcommand help; and not __fish_seen_subcommand_from top claim shell join env ps queue status report smi release adopt why log suggest resize extend kernel keep offload restore suspend resume move doctor admin config daemon setup demo replay completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from kernel" -f -a "install" -d 'Offer kernels with a part of a GPU in Jupyter'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from kernel" -f -a "list" -d 'List the kernels that Jupyter offers here'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from kernel" -f -a "remove" -d 'Take away kernels that gshare has made'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from kernel" -f -a "exec" -d 'Start a kernel; what installed kernels run'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "drain" -d 'Start no new claims on GPUs; what runs there runs on'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "undrain" -d 'Undo a drain, and clear old errors of a GPU'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "kill" -d 'End claims with all their processes, whoever they belong to'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "quota" -d 'Guarantee parts of the machine to users, groups and projects, and bound what they hold'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "mode" -d 'Change how claims share a GPU: in turns, side by side, one at a time'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "release" -d 'Close GPUs, so that they can be reset or their driver\'s settings changed'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "off" -d 'Stop acting: no limit, no taking back, no refusal, until gshare admin on'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "on" -d 'Act again after gshare admin off; nothing is ended by that'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "stage" -d 'Show or set how much gshare does: 1 observe, 2 opt-in, 3 reclaim, 4 require'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "claim-for" -d 'Claim for a user, for all programs below a cgroup that gshare does not own'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "mig" -d 'Divide a GPU into instances (MIG), or make it whole again'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from admin" -f -a "log" -d 'Show what administrators did'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "check" -d 'Report every mistake in a file; exit 78 if there is one'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "show" -d 'Print every key with the value in force'
complete -c gshare -n "__fish_gshare_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "path" -d 'Print where files, sockets and state are'
